"""Flat products: ours (A and B), XLA's dot and cuBLAS, against the time of the bytes.

Each product runs over several copies of the weight, together larger than the L2 cache,
one after the other. Ours and XLA's are chained through the residual in a loop inside
one jitted call, whose body is one CUDA graph; cuBLAS runs in a graph of torch's,
without a residual. Results are bfloat16.
"""

import argparse
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

# Products that share x are not to become one. Read when JAX's backend starts.
_FLAG = "--xla_gpu_dot_merger_threshold_mb=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import results  # noqa: E402
from fdjax.kernels.matmul import (  # noqa: E402
    OP,
    Product,
    cases,
    config,
    handler,
    matmul,
)
from fdjax.notation import Array  # noqa: E402

# Measured on one H200: 12 GiB read by 1,056 blocks.
READ_CEILING_GB_S = 4669.0
ROTATED_BYTES = 1_000_000_000
# XLA makes a graph of no fewer than five kernels.
MIN_COPIES, MAX_COPIES = 6, 32
RUN_US, REPEATS = 15_000, 5

# x, weight, residual -> y
type Multiply = Callable[[Array, Array, Array], Array]


def floor_us(n: int, k: int) -> float:
    """The time of reading the weight once."""
    return 2 * n * k / READ_CEILING_GB_S / 1e3


def num_copies(n: int, k: int) -> int:
    """Copies of a weight that are more than the L2 cache holds."""
    return min(MAX_COPIES, max(MIN_COPIES, ROTATED_BYTES // (2 * n * k)))


def num_rounds(n: int, k: int) -> int:
    """Rounds over the copies that take `RUN_US` at least."""
    return math.ceil(RUN_US / floor_us(n, k) / num_copies(n, k))


def weights(n: int, k: int) -> list[Array]:
    """Copies of a random weight."""
    block = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    weight = jnp.asarray(np.resize(block.astype(jnp.bfloat16), (n, k)))
    return [weight, *(weight.copy() for _ in range(num_copies(n, k) - 1))]


def time_jax(product: Multiply, x: Array, copies: Sequence[Array]) -> float:
    """Microseconds of one product."""
    n, k = copies[0].shape
    rounds = num_rounds(n, k)

    @jax.jit
    def run(x: Array, copies: Sequence[Array], y: Array) -> Array:
        def one_round(_: Any, y: Array) -> Array:
            for weight in copies:
                y = product(x, weight, y)
            return y

        return jax.lax.fori_loop(0, rounds, one_round, y)

    y = jnp.zeros((x.shape[0], n), x.dtype)
    times: list[float] = []
    for _ in range(REPEATS + 2):  # compiled, then captured in a graph
        start = time.perf_counter()
        run(x, copies, y).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) / rounds / len(copies) * 1e6


def time_cublas(m: int, n: int, k: int) -> float | None:
    """Microseconds of one product by cuBLAS, where torch is installed."""
    try:
        import torch  # pyright: ignore[reportMissingImports]  (group parity)
    except ImportError:
        return None
    copies, rounds = num_copies(n, k), num_rounds(n, k)
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    matrices = [torch.randn(n, k, **options) for _ in range(copies)]
    x = torch.randn(m, k, **options)
    torch.mm(x, matrices[0].T)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for matrix in matrices:
            torch.mm(x, matrix.T)
    times: list[float] = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) / rounds / copies * 1e6


def forced(name: str) -> Multiply:
    """`matmul` by one implementation."""

    def product(x: Array, weight: Array, residual: Array) -> Array:
        with OP.using(name):
            return matmul(x, weight, None, residual)

    return product


def by_config(flat: config.FlatConfig) -> Multiply:
    """B with one configuration."""

    def product(x: Array, weight: Array, residual: Array) -> Array:
        operands = (x, weight, None, residual)
        return handler.run(Product(*operands, activation=None, out_dtype=x.dtype), flat)

    return product


def measure(
    m: int,
    n: int,
    k: int,
    copies: Sequence[Array],
    *,
    search: str,
    xla: bool,
) -> dict[str, Any]:
    """Microseconds of every implementation, and B's best configuration."""
    x = jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), jnp.bfloat16)
    row: dict[str, Any] = {"m": m, "floor_us": round(floor_us(n, k), 1)}
    if m <= config.MAX_GEMV_M:
        row["gemv_us"] = time_jax(forced("gemv"), x, copies)
    row["flat_us"] = time_jax(forced("flat"), x, copies)
    row["flat_config"] = vars(config.flat_config(m, n, k, gated=False))
    if xla:
        row["xla_us"] = time_jax(forced("reference"), x, copies)
    if search == "all" and m in (8, 16, 32, 64):
        tried = {
            flat: time_jax(by_config(flat), x, copies)
            for flat in dict.fromkeys(config.candidates(m))
        }
        best = min(tried, key=lambda flat: tried[flat])
        row["searched"] = [{**vars(flat), "us": us} for flat, us in tried.items()]
        row["best_us"], row["best_config"] = tried[best], vars(best)
    return row


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--m", default=",".join(map(str, cases.BENCH_M)))
    parser.add_argument("--shapes", default=",".join(s[0] for s in cases.LLAMA3_8B))
    parser.add_argument("--search", choices=("none", "all"), default="none")
    parser.add_argument("--xla", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args()


def _default_path() -> pathlib.Path:
    return results.RESULTS / results.device_slug() / "matmul.json"


def _line(row: dict[str, Any]) -> str:
    columns = ("floor_us", "gemv_us", "flat_us", "best_us", "xla_us", "cublas_us")
    shown = (f"{c[:-3]} {row[c]:.1f}" for c in columns if row.get(c) is not None)
    return f"{row['shape']:8} M={row['m']:<3} {'  '.join(shown)}"


def main() -> None:
    """Measures, prints a line a product, and writes the results."""
    options = _parse()
    rows: list[dict[str, Any]] = []
    for name, n, k, _ in cases.LLAMA3_8B:
        if name not in options.shapes.split(","):
            continue
        copies = weights(n, k)
        for m in map(int, options.m.split(",")):
            row = measure(m, n, k, copies, search=options.search, xla=options.xla)
            row["cublas_us"] = time_cublas(m, n, k)
            rows.append({"shape": name, "n": n, "k": k, **row})
            print(_line(rows[-1]), flush=True)
        del copies
    rounded = [
        {key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()}
        for row in rows
    ]
    results.write(
        options.out or _default_path(),
        [{**row, **results.provenance()} for row in rounded],
    )


if __name__ == "__main__":
    main()
