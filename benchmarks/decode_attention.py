"""Decode attention of one layer, scheme against scheme.

A program holds one call for each layer of a KV array larger than the L2, as a decode
step does; it becomes one CUDA graph. Programs are launched ahead of their results.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import OP, UnifiedMax, cases, decode_attention
from fdjax.notation import Array

# Measured on one H200: 12 GiB read by 1,056 blocks.
READ_CEILING_GB_S = 4669.0
SCHEMES: dict[str, UnifiedMax | None] = {
    "unified": UnifiedMax(0.0, -40.0, 40.0),
    "synchronised": None,
}
# FlashInfer 0.7.2 on the same machine: the best of its four kernels, pages of 16.
FLASHINFER_US = {
    (1, 1024): 10.2,
    (8, 1024): 16.8,
    (32, 1024): 38.4,
    (64, 1024): 72.0,
    (128, 1024): 135.8,
    (256, 1024): 257.0,
    (1, 32768): 41.4,
    (8, 32768): 245.2,
}


def program(case: Case, unified: UnifiedMax | None) -> Callable[..., tuple[Array, ...]]:
    """One call for each layer, whose results all come back."""
    kwargs = {k: v for k, v in case.kwargs.items() if k != "layer"}

    def every_layer(*args: Any) -> tuple[Array, ...]:
        return tuple(
            decode_attention(*args, layer=layer, unified=unified, **kwargs)
            for layer in range(case.args[1].shape[1])
        )

    return jax.jit(every_layer)


def full(case: Case) -> tuple[Any, ...]:
    """Arrays of a case: every row as long as its pages, the same noise in each."""
    q, kv, table, *_ = case.args
    random = np.random.default_rng(1)
    pages = random.permutation(kv.shape[0])[: table.size].reshape(table.shape)
    page = cases.noise(random, jax.ShapeDtypeStruct(kv.shape[1:], kv.dtype))
    copies = jax.jit(lambda page: jnp.broadcast_to(page, kv.shape).copy())
    return (
        cases.noise(random, q),
        copies(page),
        jnp.asarray(pages, jnp.int32),
        jnp.full((table.shape[0],), table.shape[1] * kv.shape[3], jnp.int32),
        None,
    )


def microseconds(
    run: Callable[..., Any], args: tuple[Any, ...], calls: int
) -> list[float]:
    """Of one call, in each repeat."""
    last = jax.block_until_ready(run(*args))
    launches = max(4, 2000 // calls)
    repeats: list[float] = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(launches):
            last = run(*args)
        jax.block_until_ready(last)
        elapsed = time.perf_counter() - start
        repeats.append(elapsed * 1e6 / (launches * calls))
    return repeats


def measure(case: Case, scheme: str) -> dict[str, Any]:
    """One row of the results."""
    _, kv, table, *_ = case.args
    batch, context = table.shape[0], table.shape[1] * kv.shape[3]
    args = full(case)
    with OP.using("cuda"):
        repeats = microseconds(program(case, SCHEMES[scheme]), args, kv.shape[1])
    us = statistics.median(repeats)
    row_bytes = 2 * kv.shape[4] * kv.shape[5] * kv.dtype.itemsize
    gb_s = batch * context * row_bytes / us / 1e3
    return {
        "case": case.name,
        "batch": batch,
        "context": context,
        "scheme": scheme,
        "us": round(us, 2),
        "gb_s": round(gb_s),
        "fraction_of_ceiling": round(gb_s / READ_CEILING_GB_S, 3),
        "flashinfer_us": FLASHINFER_US.get((batch, context)),
        "spread": round((max(repeats) - min(repeats)) / us, 4),
        **results.provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = results.RESULTS / results.device_slug() / "decode_attention.json"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("--cases", default="", help="part of the names to run")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in tagged(cases.CASES, "bench"):
        if options.cases in case.name:
            for scheme in SCHEMES:
                rows.append(measure(case, scheme))
                print(rows[-1], flush=True)
                results.write(options.out, rows)


if __name__ == "__main__":
    main()
