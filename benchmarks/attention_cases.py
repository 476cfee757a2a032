"""What attention is measured over: rows of unequal length, shared pages, prompts.

Shapes are those of Llama-3-8B, pages of 16.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.paged import (
    KVCache,
    PagedAttention,
    PageView,
    ScoreSpec,
    SharedPrefixes,
)
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.shared_prefix import find_groups, plan_prefixes

Q_HEADS, HEAD_DIM, PAGE_SIZE = 32, 128, 16
LEAST_BYTES = 4 << 30  # of the KV array: many times the L2


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
        flashinfer_us=245.2,  # each row reads for itself; its cascade takes 451.3
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


# Rows that decode, beside a chunk of a prompt that is half done.
MIXED = "60x1016+2048@2048"
MIXED_FLASHINFER_US = 460.3  # its prefill kernel takes both kinds of rows in one call
MIXED_ROWS = (Rows("60x1016", (1016,) * 60), Rows("2048@2048", (4096,), new=2048))


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
