"""Page ids that are no page's, within a row's length: whose tokens are read then."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import attention_states, decode_attention, prefill_attention
from fdjax.kernels.attention_states import Attention
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVCache, PagedAttention, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention
from tests.support.decode_calls import WIDE
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

HEADS, KV_HEADS, PAGE_SIZE, WIDTH = 4, 2, 8, 5
LENGTHS = (33, 40, 21)
STARTS = (20, 33, 20)
BAD = 1
SCALE = 0.3
MASKS: list[dict[str, Any]] = [
    {},
    {"window": 19},
    {"soft_cap": 3.0, "slopes": np.linspace(0.1, 0.9, HEADS)},
    {"sinks": np.linspace(-1.0, 2.0, HEADS)},
]
each_mask = pytest.mark.parametrize(
    "mask", MASKS, ids=lambda mask: "+".join(mask) or "causal"
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Three rows, of which the second lacks pages, and what holds no token is NaN.

    Attributes:
        sequences: keys and values of each row.
        kept: tokens of the second row that have a page.
        kv: the pages.
        table: of the rows, with two ids that are no page's.
        q: of the last tokens of each row, packed.
    """

    sequences: list[tuple[np.ndarray, np.ndarray]]
    kept: np.ndarray
    kv: np.ndarray
    table: np.ndarray
    q: np.ndarray

    def call(self, kind: type[PagedAttention], dtype: Any, **mask: Any) -> Any:
        """One of the operations; one query a row where rows decode."""
        terms = {
            name: jnp.asarray(mask[name], jnp.float32) if name in mask else None
            for name in ("slopes", "sinks")
        }
        scores = ScoreSpec(
            terms["slopes"],
            SCALE,
            mask.get("soft_cap"),
            mask.get("window"),
            terms["sinks"],
        )
        table, lengths, starts = (
            jnp.asarray(each, jnp.int32) for each in (self.table, LENGTHS, STARTS)
        )
        decodes = kind is DecodeAttention
        view = PageView.decoding(table, lengths)
        view = view if decodes else PageView.packed(table, lengths, starts)
        layer = KVCache.page_major(jnp.asarray(self.kv, dtype)).layer(1)
        q = jnp.asarray(self.q[self.last_queries] if decodes else self.q, dtype)
        made: dict[type[PagedAttention], Any] = {
            DecodeAttention: lambda: DecodeAttention(q, layer, view, scores, None),
            PrefillAttention: lambda: PrefillAttention(q, layer, view, scores),
            Attention: lambda: Attention(q, layer, view, scores),
        }
        return made[kind]()

    @property
    def last_queries(self) -> np.ndarray:
        """Where the last token of each row stands in `q`."""
        return np.cumsum(np.subtract(LENGTHS, STARTS)) - 1

    def places(self) -> list[tuple[int, int]]:
        """Row and position of each query."""
        rows = zip(STARTS, LENGTHS, strict=True)
        return [(r, at) for r, (s, n) in enumerate(rows) for at in range(s, n)]

    def expected(self, row: int, at: int, q: np.ndarray, **mask: Any) -> np.ndarray:
        """What a query finds among the tokens that are there."""
        mask = dict(mask)
        k, v = self.sequences[row]
        first = max(at + 1 - mask.pop("window", at + 1), 0)
        seen = np.arange(first, at + 1)
        if row == BAD:
            seen = seen[self.kept[first : at + 1]]
        slopes = mask.pop("slopes", None)
        if slopes is None:
            own: dict[str, Any] = {"start": len(seen) - 1, "scale": SCALE, **mask}
            return dense_attention(q[None], k[seen], v[seen], **own)[0]
        # Distances are those of positions, whichever tokens there are.
        key, value = (np.repeat(x[seen], HEADS // KV_HEADS, axis=1) for x in (k, v))
        scores = np.einsum("hd,thd->ht", q, key) * SCALE
        cap = mask["soft_cap"]
        scores = cap * np.tanh(scores / cap) + slopes[:, None] * (seen - at)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("ht,thd->hd", weights, value)


def rows(*, head_dim: int = 16, others: float = 1.0) -> Rows:
    """Drawn ones; values of rows that lack nothing are `others` times as large."""
    random = np.random.default_rng(3)
    heads = (KV_HEADS, head_dim)
    sizes = [1.0 if row == BAD else others for row in range(len(LENGTHS))]
    sequences = [
        (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)) * size)
        for n, size in zip(LENGTHS, sizes, strict=True)
    ]
    kv, table = scatter_pages(
        sequences,
        num_pages=WIDTH * len(LENGTHS) + 3,
        page_size=PAGE_SIZE,
        num_layers=2,
        layer=1,
        width=WIDTH,
        seed=2,
    )
    kept = np.ones(LENGTHS[BAD], bool)
    for place, absent in ((1, len(kv)), (3, -1)):
        kv[table[BAD, place]] = np.nan
        table[BAD, place] = absent
        kept[place * PAGE_SIZE : (place + 1) * PAGE_SIZE] = False
    count = sum(LENGTHS) - sum(STARTS)
    return Rows(
        sequences, kept, kv, table, random.normal(size=(count, HEADS, head_dim))
    )


OPS: dict[str, tuple[Op[Any, Any], type[PagedAttention]]] = {
    "decode_attention": (decode_attention.OP, DecodeAttention),
    "prefill_attention": (prefill_attention.OP, PrefillAttention),
    "attention_states": (attention_states.OP, Attention),
}


def served(name: str, implementation: str, call: Any) -> jax.Array:
    """What queries find, by this implementation."""
    op, kind = OPS[name]
    with op.using(implementation):
        found = jax.jit(functools.partial(op))(call)
    return found.output if kind is Attention else found[0]


@each_mask
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        *((name, "reference") for name in OPS),
        ("decode_attention", "cpu"),
        ("prefill_attention", "cpu"),
    ],
)
def test_tokens_on_absent_pages_are_as_if_not_there(
    name: str, implementation: str, mask: dict[str, Any]
):
    if implementation == "cpu":
        skip_without(name, "cpu")
    drawn, kind = rows(), OPS[name][1]
    found = served(name, implementation, drawn.call(kind, jnp.float32, **mask))
    places = drawn.places()
    asked = drawn.last_queries if kind is DecodeAttention else range(len(places))
    for query, at in zip(found, asked, strict=True):
        assert_close(
            query, drawn.expected(*places[at], drawn.q[at], **mask), reduction=64
        )


def test_slots_that_no_page_has_are_as_if_not_there():
    drawn = rows()
    call = drawn.call(DecodeAttention, jnp.float32)
    table = np.where(
        (drawn.table < 0) | (drawn.table >= len(drawn.kv)), -9999, drawn.table
    )
    slots = table[:, :, None] * PAGE_SIZE + np.arange(PAGE_SIZE)
    slots = np.where(slots < 0, [[[-1]], [[10**6]], [[-5]]], slots)
    view = dataclasses.replace(
        call.pages,
        page_table=jnp.asarray(slots.reshape(len(LENGTHS), -1), jnp.int32),
        by_slot=True,
    )
    by_slot = dataclasses.replace(call, pages=view)
    np.testing.assert_array_equal(
        np.asarray(served("decode_attention", "reference", by_slot)),
        np.asarray(served("decode_attention", "reference", call)),
    )


def test_a_row_without_any_page_finds_nothing():
    drawn = rows()
    drawn.table[BAD] = -1
    for name, (_, kind) in OPS.items():
        call = drawn.call(kind, jnp.float32)
        found = np.asarray(served(name, "reference", call))
        own = [row == BAD for row, _ in drawn.places()]
        bad = found[BAD] if kind is DecodeAttention else found[own]
        assert not bad.any()


@pytest.mark.gpu
@pytest.mark.parametrize("unified", [False, True], ids=["synchronised", "unified"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("name", OPS)
def test_on_a_gpu_a_row_that_lacks_pages_has_nothing_of_others(
    name: str, head_dim: int, unified: bool
):
    """Its result means nothing; others' values are large, and free pages NaN."""
    skip_without(name, "gpu")
    kind = OPS[name][1]
    if unified and kind is Attention:
        pytest.skip("states have no unified maximum")
    drawn = rows(head_dim=head_dim, others=1000.0)
    call = drawn.call(kind, jnp.bfloat16)
    if unified:
        call = dataclasses.replace(call, unified=WIDE)
    found = np.asarray(served(name, "cuda", call), np.float32)
    expected = served(name, "reference", call)
    places = drawn.places()
    asked = drawn.last_queries if kind is DecodeAttention else range(len(places))
    largest = np.abs(drawn.sequences[BAD][1]).max() * 1.01
    for query, at in enumerate(asked):
        if places[at][0] == BAD:
            assert np.abs(found[query]).max() <= largest
        else:
            own = jnp.asarray(found[query], jnp.bfloat16)
            assert_close(own, expected[query], reduction=64)
