"""Attention of one layer over rows of unequal length, of shared pages and of prompts.

A program holds one call for each layer of a KV array larger than the L2, as a step
does, and one plan for all of them. Shapes are those of Llama-3-8B, pages of 16.
"""

import argparse
import dataclasses
import pathlib
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.decode_attention import (
    SCHEMES,
    device_microseconds,
    microseconds,
    program,
)
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.paged import (
    KVCache,
    PagedAttention,
    PageView,
    ScoreSpec,
    SharedPrefixes,
)
from fdjax.kernels.prefill_attention import OP as PREFILL
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.shared_prefix import find_groups, plan_prefixes
from fdjax.notation import Array

Q_HEADS, HEAD_DIM, PAGE_SIZE = 32, 128, 16
LEAST_BYTES = 4 << 30  # of the KV array: many times the L2
MANY_FLOPS = 1e11  # of a call: some 0.2 ms


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the rows of a call have.

    Attributes:
        name: of the case.
        lengths: tokens of each row in the cache, its new ones among them.
        new: new tokens of each row.
        groups: rows next to each other whose leading pages are the same; 1: none.
        shared: tokens that the rows of a group share.
        kv_heads: of the model.
        flashinfer_us: of FlashInfer 0.7.2's best kernel on an H200, where measured; of
            shared tokens, its `MultiLevelCascadeAttentionWrapper`.
    """

    name: str
    lengths: tuple[int, ...]
    new: int = 1
    groups: int = 1
    shared: int = 0
    kv_heads: int = 8
    flashinfer_us: float | None = None

    @property
    def token_bytes(self) -> int:
        """Of a token's keys and values in one layer."""
        return 2 * self.kv_heads * HEAD_DIM * 2

    @property
    def tokens(self) -> int:
        """That have to be read: shared ones once."""
        repeated = self.shared * (len(self.lengths) - len(self.lengths) // self.groups)
        return sum(self.lengths) - repeated

    @property
    def flops(self) -> int:
        """Of both GEMMs over what causal queries see."""
        seen = sum(self.new * (2 * n - self.new + 1) // 2 for n in self.lengths)
        return 4 * seen * Q_HEADS * HEAD_DIM


CASES = (
    Rows("64x1016", (1016,) * 64, flashinfer_us=73.0),
    Rows("63x512+1x32768", (*(512,) * 63, 32_768), flashinfer_us=109.0),
    Rows("7x4096+1x32768", (*(4096,) * 7, 32_768), flashinfer_us=68.6),
    Rows("255x256+1x32768", (*(256,) * 255, 32_768), flashinfer_us=500.0),
    Rows(
        "8x32768-shared",
        (32_768,) * 8,
        groups=8,
        shared=32_768,
        flashinfer_us=451.3,
    ),
    Rows(
        "64x8192-shared+1024",
        (9216,) * 64,
        groups=64,
        shared=8192,
        flashinfer_us=395.6,
    ),
    Rows(
        "4x16x8192-shared+1024",
        (9216,) * 64,
        groups=16,
        shared=8192,
        flashinfer_us=392.6,
    ),
    Rows("64@32704", (32_768,), new=64, flashinfer_us=112.6),
    # Drafts that are verified: a few new tokens in each of many rows.
    Rows("64x4@1020", (1024,) * 64, new=4, flashinfer_us=74.8),
    Rows("64x16@1008", (1024,) * 64, new=16, flashinfer_us=84.5),
    Rows("prefill-1x8192", (8192,), new=8192, flashinfer_us=1018.0),
    Rows("prefill-1x16384", (16_384,), new=16_384, flashinfer_us=4082.5),
    Rows("prefill-8x1024", (1024,) * 8, new=1024, flashinfer_us=201.8),
    # As many query heads for each key/value head as the names say; above it is 4.
    Rows("prefill-1x8192-group1", (8192,), new=8192, kv_heads=32),
    Rows("prefill-1x8192-group8", (8192,), new=8192, kv_heads=4),
    Rows("prefill-8x1024-group1", (1024,) * 8, new=1024, kv_heads=32),
    Rows("prefill-8x1024-group8", (1024,) * 8, new=1024, kv_heads=4),
)


def page_table(rows: Rows) -> tuple[np.ndarray[Any, Any], int]:
    """Pages in random order, the leading ones of a group the same, and their number."""
    needed = [-(-length // PAGE_SIZE) for length in rows.lengths]
    shared = rows.shared // PAGE_SIZE
    repeated = shared * (len(needed) - len(needed) // rows.groups)
    total = sum(needed) - repeated
    pages = iter(np.random.default_rng(0).permutation(total).tolist())
    table = np.full((len(needed), max(needed)), total, np.int32)
    for row, count in enumerate(needed):
        first = row // rows.groups * rows.groups
        kept = shared if row != first else 0
        table[row, :kept] = table[first, :kept]
        table[row, kept:count] = [next(pages) for _ in range(count - kept)]
    return table, total


def prefixes_of(rows: Rows, table: np.ndarray[Any, Any]) -> SharedPrefixes | None:
    """What the rows share, as an engine would find it; `None` where that is nothing."""
    groups = find_groups(table, rows.lengths, page_size=PAGE_SIZE)
    if not groups:
        return None
    return plan_prefixes(
        groups,
        rows=len(rows.lengths),
        num_kv_heads=rows.kv_heads,
        group=Q_HEADS // rows.kv_heads,
    )


def draw(rows: Rows) -> PagedAttention:
    """A call over noise, for the first layer."""
    table, total = page_table(rows)
    layers = max(2, min(32, LEAST_BYTES // (total * PAGE_SIZE * rows.token_bytes)))
    keys = jax.random.split(jax.random.key(0), 2)
    shape = (total, layers, 2, PAGE_SIZE, rows.kv_heads, HEAD_DIM)
    page = jax.random.normal(keys[0], (1, 1, *shape[2:]), jnp.bfloat16)
    cache = jax.jit(lambda page: jnp.broadcast_to(page, shape).copy())(page)
    queries = rows.new * len(rows.lengths)
    q = jax.random.normal(keys[1], (queries, Q_HEADS, HEAD_DIM), jnp.bfloat16)
    lengths = jnp.asarray(rows.lengths, jnp.int32)
    kv = KVCache.page_major(cache).layer(0)
    scores = ScoreSpec(None, HEAD_DIM**-0.5, None, None)
    if rows.new == 1:
        view = PageView.decoding(jnp.asarray(table), lengths, prefixes_of(rows, table))
        return DecodeAttention(q, kv, view, scores, unified=None)
    view = PageView.packed(jnp.asarray(table), lengths, lengths - rows.new)
    return PrefillAttention(q, kv, view, scores)


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


# Rows that decode, beside a chunk of a prompt that is half done.
MIXED = "60x1016+2048@2048"
MIXED_FLASHINFER_US = 460.3  # its prefill kernel takes both kinds of rows in one call
MIXED_ROWS = (Rows("60x1016", (1016,) * 60), Rows("2048@2048", (4096,), new=2048))


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
