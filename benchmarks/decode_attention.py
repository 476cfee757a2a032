"""Decode attention of one layer, scheme against scheme.

A program holds one call for each layer of a KV array larger than the L2, as a decode
step does; it becomes one CUDA graph. Programs are launched ahead of their results.

`--implementation pallas --sweep` tries several launch configs of the Pallas kernel and
prints a table; without `--sweep` it measures the heuristic's.
"""

import argparse
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import needs, results
from benchmarks.timeline import device_runs, span_us
from fdjax.kernels.cases import Case, noise, struct, tagged
from fdjax.kernels.decode_attention import OP, DecodeAttention, UnifiedMax, cases
from fdjax.kernels.decode_attention.pallas import (
    LaunchConfig,
    attend_with_scores,
    config,
)
from fdjax.kernels.paged import PageView
from fdjax.notation import Array

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


type Decode = Callable[[DecodeAttention], tuple[Array, ...]]


def program(unified: UnifiedMax | None) -> Decode:
    """One call for each layer, whose results all come back."""

    def every_layer(call: DecodeAttention) -> tuple[Array, ...]:
        cache = call.kv.cache
        return tuple(
            OP(dataclasses.replace(call, kv=cache.layer(layer), unified=unified))[0]
            for layer in range(cache.num_layers)
        )

    return jax.jit(every_layer)


def full(case: Case[DecodeAttention]) -> DecodeAttention:
    """A case with arrays: every row as long as its pages, the same noise in each."""
    call, random = case.call, np.random.default_rng(1)
    cache, table = call.kv.cache, call.pages.page_table
    shape = cache.array.shape
    pages = random.permutation(shape[0])[: table.size].reshape(table.shape)
    page = noise(random, struct(*shape[1:], dtype=cache.dtype))
    lengths = jnp.full(call.pages.num_rows, call.max_tokens, jnp.int32)
    copies = jax.jit(lambda page: jnp.broadcast_to(page, shape).copy())
    return dataclasses.replace(
        call,
        q=noise(random, call.q),
        kv=cache.with_array(copies(page)).layer(0),
        pages=PageView.decoding(jnp.asarray(pages, jnp.int32), lengths),
    )


def microseconds(run: Decode, call: Any, *, calls: int = 2000) -> list[float]:
    """Of one layer, in each repeat of about so many calls."""
    last, layers = jax.block_until_ready(run(call)), call.kv.cache.num_layers
    launches = max(4, calls // layers)
    repeats: list[float] = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(launches):
            last = run(call)
        jax.block_until_ready(last)
        elapsed = time.perf_counter() - start
        repeats.append(elapsed * 1e6 / (launches * layers))
    return repeats


def device_microseconds(run: Decode, call: Any) -> float:
    """Of one layer, from the first kernel of a program to its last, by a trace.

    The host writes each call's addresses into the program's graph before it launches
    it. With calls of a few microseconds that takes longer than the calls.
    """
    layers = call.kv.cache.num_layers
    runs = device_runs(lambda: run(call), launches=16, at_least=layers)
    return statistics.median(map(span_us, runs)) / layers


def measure(
    case: Case[DecodeAttention], scheme: str, implementation: str
) -> dict[str, Any]:
    """One row of the results."""
    cache, batch = case.call.kv.cache, case.call.q.shape[0]
    context = case.call.max_tokens
    with OP.using(implementation):
        run, call = program(SCHEMES[scheme]), full(case)
        repeats, device_us = microseconds(run, call), device_microseconds(run, call)
    us = statistics.median(repeats)
    row_bytes = 2 * cache.num_kv_heads * cache.head_dim * cache.dtype.itemsize
    gb_s = batch * context * row_bytes / us / 1e3
    return {
        "case": case.name,
        "batch": batch,
        "context": context,
        "scheme": scheme,
        "us": round(us, 2),
        "device_us": round(device_us, 2),
        "gb_s": round(gb_s),
        **results.share_of_ceiling(gb_s),
        "flashinfer_us": FLASHINFER_US.get((batch, context)),
        "spread": round((max(repeats) - min(repeats)) / us, 4),
        **results.provenance(),
    }


def launch_configs(call: DecodeAttention) -> list[LaunchConfig]:
    """Those of the Pallas kernel worth trying: one, two or three blocks at a time."""
    cache, tokens = call.kv.cache, call.max_tokens
    sizes = config.Sizes(
        call.q.shape[0],
        cache.num_kv_heads,
        8,
        cache.head_dim,
        cache.page_size,
        tokens,
    )
    chosen = config.heuristic(sizes).splits
    splits = sorted({chosen, max(1, chosen // 2), min(2 * chosen, config.MAX_SPLITS)})
    rings = ((64, 2), (64, 3), (64, 6), (128, 3))
    tried = [LaunchConfig(*ring, split) for ring in rings for split in splits]
    most = max(1, tokens // config.TENSOR_CORE_ROWS)
    return [c for c in tried if config.fits(sizes, c) and c.splits <= most]


def program_of(launch_config: LaunchConfig) -> Decode:
    """One call of the Pallas kernel for each layer."""

    def every_layer(call: DecodeAttention) -> tuple[Array, ...]:
        cache = call.kv.cache
        return tuple(
            attend_with_scores(
                call.q,
                cache.layer(layer),
                call.pages,
                scale=call.scores.scale,
                unified=SCHEMES["unified"],
                launch_config=launch_config,
            )[0]
            for layer in range(cache.num_layers)
        )

    return jax.jit(every_layer)


def sweep(case: Case[DecodeAttention]) -> None:
    """Prints what each launch config takes."""
    call = full(case)
    print(f"{case.name}\n  tile stages splits        us", flush=True)
    for one in launch_configs(call):
        us = statistics.median(microseconds(program_of(one), call))
        where = f"{one.tile_tokens:4} {one.stages:6} {one.splits:6}"
        print(f"  {where} {us:9.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--implementation", default="cuda", choices=["cuda", "pallas"])
    parser.add_argument(
        "--sweep", action="store_true", help="launch configs of the Pallas kernel"
    )
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--cases", default="", help="part of the names to run")
    options = parser.parse_args()
    needs.gpu()
    suffix = "" if options.implementation == "cuda" else f"_{options.implementation}"
    folder = results.RESULTS / results.device_slug()
    out = options.out or folder / f"decode_attention{suffix}.json"
    rows: list[dict[str, Any]] = []
    for case in tagged(cases.CASES, "bench"):
        if options.cases not in case.name:
            continue
        if options.sweep:
            sweep(case)
            continue
        for scheme in SCHEMES:
            rows.append(measure(case, scheme, options.implementation))
            print(rows[-1], flush=True)
            results.write(out, rows)
