"""Random ragged batches: every operation of attention against dense attention."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels import attention_states, decode_attention, prefill_attention
from fdjax.kernels.attention_states import Attention
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVCache, PagedAttention, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

ROWS, SCALE = 5, 0.3


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is static in a call: a program each.

    Attributes:
        page_size: `Z`.
        heads: of keys and values, and of queries for each of these.
        head_dim: `D`.
        mask: of the scores; with ALiBi and sinks of heads that are not alike.
        room: tokens that a row may have.
        queries: tokens of a call that has any number a row.
    """

    page_size: int
    heads: tuple[int, int]
    head_dim: int
    mask: tuple[tuple[str, Any], ...] = ()
    room: int = 40
    queries: int = 32

    @property
    def width(self) -> int:
        return -(-self.room // self.page_size)

    @property
    def options(self) -> dict[str, Any]:
        """As dense attention takes them."""
        count = self.heads[0] * self.heads[1]
        by_head = {
            "slopes": np.linspace(0.01, 0.9, count),
            "sinks": np.linspace(-1.0, 2.0, count),
        }
        return {name: by_head.get(name, value) for name, value in self.mask}

    @property
    def scores(self) -> ScoreSpec:
        own = self.options
        slopes, sinks = (
            jnp.asarray(own[name], jnp.float32) if name in own else None
            for name in ("slopes", "sinks")
        )
        return ScoreSpec(slopes, SCALE, own.get("soft_cap"), own.get("window"), sinks)


SIZES = (
    Sizes(1, (2, 1), 17),
    Sizes(2, (1, 16), 8, (("window", 5),)),
    Sizes(7, (1, 3), 64, (("sinks", True),)),
    Sizes(8, (3, 1), 17, (("soft_cap", 2.0),)),
    Sizes(16, (2, 4), 64, (("slopes", True),)),
    Sizes(
        5,
        (2, 5),
        8,
        (("window", 7), ("sinks", True), ("soft_cap", 3.0), ("slopes", True)),
    ),
)
ON_A_GPU = tuple(
    Sizes(page_size, heads, head_dim, mask, room=700, queries=900)
    for page_size, heads, head_dim, mask in (
        (16, (2, 4), 128, ()),
        (2, (1, 16), 64, (("window", 90),)),
        (12, (3, 3), 80, (("sinks", True),)),
        (32, (2, 1), 256, (("soft_cap", 2.0),)),
        (128, (2, 8), 128, (("slopes", True),)),
        (8, (1, 5), 64, (("window", 300), ("sinks", True), ("soft_cap", 3.0))),
    )
)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows, by their tokens and how many of them are new; and who drew them."""

    sizes: Sizes
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int

    @functools.cached_property
    def sequences(self) -> list[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(self.seed)
        heads = (self.sizes.heads[0], self.sizes.head_dim)
        return [
            (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
            for n in self.lengths
        ]

    @functools.cached_property
    def q(self) -> np.ndarray:
        """New tokens of row 0, of row 1, and so on; those of no row are far off."""
        kv_heads, group = self.sizes.heads
        shape = (self.sizes.queries, kv_heads * group, self.sizes.head_dim)
        q = np.random.default_rng(self.seed + 1).normal(size=shape)
        q[max(sum(self.counts), ROWS) :] = 1e4
        return q

    def arrays(self, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The KV array, the page table, and lengths."""
        width = self.sizes.width
        kv, table = scatter_pages(
            self.sequences,
            num_pages=width * ROWS + 2,
            page_size=self.sizes.page_size,
            num_layers=2,
            layer=1,
            width=width,
            seed=self.seed,
        )
        lengths = jnp.asarray(self.lengths, jnp.int32)
        return jnp.asarray(kv, dtype), jnp.asarray(table), lengths

    def expected(self, row: int, count: int, q: np.ndarray) -> np.ndarray:
        """What the last tokens of a row find."""
        start, own = self.lengths[row] - count, self.sizes.options
        return dense_attention(q, *self.sequences[row], start=start, scale=SCALE, **own)


def batches(sizes: st.SearchStrategy[Sizes]) -> st.SearchStrategy[Batch]:
    @st.composite
    def drawn(draw: st.DrawFn) -> Batch:
        own = draw(sizes)
        around = st.builds(
            lambda pages, more: min(max(pages * own.page_size + more, 0), own.room),
            st.integers(0, own.width),
            st.integers(-1, 1),
        )
        length = st.one_of(st.sampled_from([0, 1]), around, st.integers(0, own.room))
        lengths = draw(st.lists(length, min_size=ROWS, max_size=ROWS))
        counts: list[int] = []
        for n in lengths:
            most = min(n, own.queries - sum(counts))
            one = st.sampled_from([most, min(most, 1)])
            counts.append(draw(st.one_of(one, st.integers(0, most))))
        return Batch(own, tuple(lengths), tuple(counts), draw(st.integers(0, 99)))

    return drawn()


OPS: dict[type[PagedAttention], Op[Any, Any]] = {
    DecodeAttention: decode_attention.OP,
    PrefillAttention: prefill_attention.OP,
    Attention: attention_states.OP,
}


@functools.cache
def program(kind: type[PagedAttention], name: str, sizes: Sizes) -> Callable[..., Any]:
    """The results of one implementation."""
    others = (None,) if kind is DecodeAttention else ()
    scores, op = sizes.scores, OPS[kind]

    def run(q: jax.Array, kv: jax.Array, view: PageView) -> Any:
        with op.using(name):
            made: Any = kind
            layer = KVCache.page_major(kv).layer(1)
            found = op(made(q, layer, view, scores, *others))
        return found.output if kind is Attention else found[0]

    return jax.jit(run)


def ran(
    batch: Batch, kind: type[PagedAttention], name: str, dtype: Any
) -> list[jax.Array]:
    """Of each row what its new tokens find; its last token, where rows decode."""
    kv, table, lengths = batch.arrays(dtype)
    run = program(kind, name, batch.sizes)
    q = jnp.asarray(batch.q, dtype)
    if kind is DecodeAttention:
        out = run(q[:ROWS], kv, PageView.decoding(table, lengths))
        return [out[row : row + 1] for row in range(ROWS)]
    counts = jnp.asarray(batch.counts, jnp.int32)
    out = run(q, kv, PageView.packed(table, lengths, lengths - counts))
    ends = np.cumsum(batch.counts)
    return [out[end - n : end] for end, n in zip(ends, batch.counts, strict=True)]


ON_A_CPU: list[tuple[type[PagedAttention], str]] = [
    (DecodeAttention, "reference"),
    (DecodeAttention, "cpu"),
    (PrefillAttention, "reference"),
    (PrefillAttention, "cpu"),
    (Attention, "reference"),
]


@settings(max_examples=60, deadline=None)
@given(batch=batches(st.sampled_from(SIZES)))
@pytest.mark.parametrize(("kind", "name"), ON_A_CPU)
def test_random_batches_are_dense_attention(
    kind: type[PagedAttention], name: str, batch: Batch
):
    if name == "cpu":
        skip_without(OPS[kind].name, "cpu")
    decodes, ends = kind is DecodeAttention, np.cumsum(batch.counts)
    for row, found in enumerate(ran(batch, kind, name, jnp.float32)):
        count = 1 if decodes else batch.counts[row]
        if decodes and not batch.lengths[row]:
            assert not np.asarray(found).any()
        elif count:
            first = row if decodes else ends[row] - count
            own = batch.q[first : first + count]
            assert_close(found, batch.expected(row, count, own), reduction=64)


@pytest.mark.gpu
@settings(max_examples=12, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("sizes", ON_A_GPU, ids=lambda sizes: f"{sizes.head_dim}")
@pytest.mark.parametrize("kind", OPS, ids=lambda kind: kind.__name__)
def test_random_batches_on_a_gpu_are_the_definition(
    kind: type[PagedAttention], sizes: Sizes, data: st.DataObject
):
    skip_without(OPS[kind].name, "gpu")
    batch = data.draw(batches(st.just(sizes)))
    expected = ran(batch, kind, "reference", jnp.bfloat16)
    actual = ran(batch, kind, "cuda", jnp.bfloat16)
    for found, wanted in zip(actual, expected, strict=True):
        if len(found):
            assert_close(found.astype(jnp.bfloat16), wanted, reduction=64)
