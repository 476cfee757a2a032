"""Flat products: ours (A and B), XLA's dot and cuBLAS, against the time of the bytes.

Each product runs over several copies of the weight, together larger than the L2 cache,
in one CUDA graph: for ours and XLA's, one jitted call; for cuBLAS, a graph of torch's.
"""

import argparse
import functools
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

# One product after the other, as in a decode step, though these do not depend on each
# other. Read when JAX's backend starts.
_FLAG = "--xla_gpu_command_buffer_scheduling_mode=SERIALIZE"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import results  # noqa: E402
from fdjax.kernels.matmul import OP, call, cases, config, matmul  # noqa: E402
from fdjax.notation import Array  # noqa: E402

# Measured on one H200: 12 GiB read by 1,056 blocks.
READ_CEILING_GB_S = 4669.0
ROTATED_BYTES = 1_000_000_000
MAX_COPIES = 32
# Products of one call: enough for the host to stay ahead of the device, and more than
# the five that XLA makes a graph of.
MIN_PRODUCTS, MIN_CALL_US = 16, 3_000
CALLS, REPEATS = 4, 5

type Product = Callable[[Array, Array], Array]


def floor_us(n: int, k: int) -> float:
    """The time of reading the weight once."""
    return 2 * n * k / READ_CEILING_GB_S / 1e3


def weights(n: int, k: int) -> list[Array]:
    """Copies of a random weight, more than the L2 cache holds."""
    copies = min(MAX_COPIES, max(2, ROTATED_BYTES // (2 * n * k)))
    block = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    weight = jnp.asarray(np.resize(block.astype(jnp.bfloat16), (n, k)))
    return [weight, *(weight.copy() for _ in range(copies - 1))]


def rounds(n: int, k: int, copies: int) -> int:
    """How often one call goes over the copies."""
    products = max(MIN_PRODUCTS, MIN_CALL_US / floor_us(n, k))
    return math.ceil(products / copies)


def time_jax(product: Product, x: Array, copies: Sequence[Array]) -> float:
    """Microseconds of one product."""
    n, k = copies[0].shape
    # A round has its own x: equal products would be computed once.
    xs = [x + i for i in range(rounds(n, k, len(copies)))]

    def products(xs: list[Array], copies: Sequence[Array]) -> list[Array]:
        return [product(x, weight) for x in xs for weight in copies]

    run = jax.jit(products)
    for _ in range(3):  # compiled, then captured in a graph
        jax.block_until_ready(run(xs, copies))
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        outputs = [run(xs, copies) for _ in range(CALLS)]
        jax.block_until_ready(outputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / CALLS / len(xs) / len(copies) * 1e6


def time_cublas(m: int, n: int, k: int, *, float32: bool) -> float | None:
    """Microseconds of one product by cuBLAS, where torch is installed."""
    try:
        import torch
    except ImportError:
        return None
    copies = min(MAX_COPIES, max(2, ROTATED_BYTES // (2 * n * k)))
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    matrices = [torch.randn(n, k, **options) for _ in range(copies)]
    x = torch.randn(m, k, **options)
    mm: Any = torch.mm  # its stubs do not know out_dtype
    multiply = functools.partial(mm, out_dtype=torch.float32) if float32 else mm
    multiply(x, matrices[0].T)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for matrix in matrices * rounds(n, k, copies):
            multiply(x, matrix.T)
    times: list[float] = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) / CALLS / copies / rounds(n, k, copies) * 1e6


def forced(name: str, out_dtype: Any) -> Product:
    """`matmul` by one implementation."""

    def product(x: Array, weight: Array) -> Array:
        with OP.using(name):
            return matmul(x, weight, out_dtype=out_dtype)

    return product


def by_config(flat: config.FlatConfig, out_dtype: Any) -> Product:
    """B with one configuration."""
    return lambda x, weight: call.product(
        x, weight, None, None, activation=None, out_dtype=out_dtype, config=flat
    )


def measure(
    m: int,
    n: int,
    k: int,
    out_dtype: Any,
    copies: Sequence[Array],
    *,
    search: str,
    xla: bool,
) -> dict[str, Any]:
    """Microseconds of every implementation, and B's best configuration."""
    x = jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), jnp.bfloat16)
    row: dict[str, Any] = {"m": m, "floor_us": round(floor_us(n, k), 1)}
    if m <= config.MAX_GEMV_M:
        row["gemv_us"] = time_jax(forced("gemv", out_dtype), x, copies)
    row["flat_us"] = time_jax(forced("flat", out_dtype), x, copies)
    row["flat_config"] = vars(config.flat_config(m, n, k, gated=False))
    if xla:
        row["xla_us"] = time_jax(forced("reference", out_dtype), x, copies)
    if search == "all" and m in (8, 16, 32, 64):
        tried = {
            flat: time_jax(by_config(flat, out_dtype), x, copies)
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
    for name, n, k, float32 in cases.LLAMA3_8B:
        if name not in options.shapes.split(","):
            continue
        out_dtype = jnp.float32 if float32 else jnp.bfloat16
        copies = weights(n, k)
        for m in map(int, options.m.split(",")):
            row = measure(
                m, n, k, out_dtype, copies, search=options.search, xla=options.xla
            )
            row["cublas_us"] = time_cublas(m, n, k, float32=float32)
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
