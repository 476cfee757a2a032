"""Attention of one layer over rows of unequal length, of shared pages and of prompts.

A program holds one call for each layer of a KV array larger than the L2, as a step
does, and one plan for all of them.
"""

import argparse
import dataclasses
import pathlib
import statistics
from typing import Any

import jax

from benchmarks import needs, results
from benchmarks.attention_cases import (
    CASES,
    MIXED,
    MIXED_FLASHINFER_US,
    MIXED_ROWS,
    Rows,
    draw,
)
from benchmarks.decode_attention import (
    SCHEMES,
    device_microseconds,
    microseconds,
    program,
)
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.paged import KVCache
from fdjax.kernels.prefill_attention import OP as PREFILL
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.notation import Array

MANY_FLOPS = 1e11  # of a call: some 0.2 ms


def prefill_program() -> Any:
    """One call of prefill attention for each layer."""

    def every_layer(call: PrefillAttention) -> tuple[Array, ...]:
        cache = call.kv.cache
        layers = map(cache.layer, range(cache.num_layers))
        return tuple(PREFILL(dataclasses.replace(call, kv=kv))[0] for kv in layers)

    return jax.jit(every_layer)


def measure(rows: Rows) -> list[dict[str, Any]]:
    """The rows of the results of a case: of prompts, one for each scheme."""
    call = draw(rows)
    if isinstance(call, DecodeAttention):
        run = program(SCHEMES["synchronised"])
        repeats = microseconds(run, call, calls=400)
        gb_s = rows.tokens * rows.token_bytes / 1e3
        return [_row(rows, repeats, device_microseconds(run, call), gb_s=gb_s)]
    schemes = {
        "": call,
        "-unified": dataclasses.replace(call, unified=SCHEMES["unified"]),
    }
    run = prefill_program()
    repeats = interleaved(run, schemes, calls=24 if rows.flops > MANY_FLOPS else 400)
    return [
        _row(
            rows,
            repeats[suffix],
            device_microseconds(run, call),
            suffix=suffix,
            tflop_s=rows.flops / 1e6,
        )
        for suffix, call in schemes.items()
    ]


def interleaved(
    run: Any, schemes: dict[str, Any], *, calls: int
) -> dict[str, list[float]]:
    """The times of calls in turns: what the card's clock does meets all alike."""
    repeats: dict[str, list[float]] = {name: [] for name in schemes}
    for _ in range(4):
        for name, call in schemes.items():
            repeats[name] += microseconds(run, call, calls=calls)[1:]
    return repeats


def _row(
    rows: Rows,
    repeats: list[float],
    device_us: float,
    *,
    suffix: str = "",
    **work: float,
) -> dict[str, Any]:
    """One row; `work` over microseconds is what stands in it."""
    us = statistics.median(repeats)
    return {
        "case": rows.name + suffix,
        "us": round(us, 2),
        "device_us": round(device_us, 2),
        **{unit: round(amount / us) for unit, amount in work.items()},
        "flashinfer_us": rows.flashinfer_us,
        "spread": round((max(repeats) - min(repeats)) / us, 4),
        **results.provenance(),
    }


def mixed_program() -> Any:
    """For each layer, rows that decode and then a chunk."""

    def every_layer(decode: DecodeAttention, chunk: PrefillAttention) -> list[Array]:
        caches = decode.kv.cache, chunk.kv.cache
        outs: list[Array] = []
        for layer in range(min(cache.num_layers for cache in caches)):
            here, there = (cache.layer(layer) for cache in caches)
            outs.append(DECODE(dataclasses.replace(decode, kv=here))[0])
            outs.append(PREFILL(dataclasses.replace(chunk, kv=there))[0])
        return outs

    return jax.jit(every_layer)


def measure_mixed() -> dict[str, Any]:
    """As `measure`, with the times of both alone."""
    alone = [measure(rows)[0]["us"] for rows in MIXED_ROWS]
    decode, chunk = map(draw, MIXED_ROWS)
    run = mixed_program()
    layers = min(call.kv.cache.num_layers for call in (decode, chunk))
    single = dataclasses.replace(
        decode, kv=KVCache.page_major(decode.kv.cache.array[:1, :layers]).layer(0)
    )
    repeats = microseconds(lambda _: run(decode, chunk), single, calls=48)
    us = statistics.median(repeats)
    return {
        "case": MIXED,
        "us": round(us, 2),
        "gb_s": round(
            sum(rows.tokens * rows.token_bytes for rows in MIXED_ROWS) / us / 1e3
        ),
        "alone_us": alone,
        "flashinfer_us": MIXED_FLASHINFER_US,
        "spread": round((max(repeats) - min(repeats)) / us, 4),
        **results.provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--cases", help="names, with commas between; all by default")
    options = parser.parse_args()
    needs.gpu()
    out = options.out or results.RESULTS / results.device_slug() / "attention.json"
    names = [*(case.name for case in CASES), MIXED]
    chosen = options.cases.split(",") if options.cases else names
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if case.name in chosen:
            rows += measure(case)
            print(*rows[-2:], sep="\n", flush=True)
            results.write(out, rows)
    if MIXED in chosen:
        rows.append(measure_mixed())
        print(rows[-1], flush=True)
        results.write(out, rows)


if __name__ == "__main__":
    main()
