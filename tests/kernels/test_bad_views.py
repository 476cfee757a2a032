"""Views that no row should have: what they give, and rows beside them."""

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
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention
from tests.support.dense_attention import dense_attention
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

ROWS, WIDTH, PAGE_SIZE, QUERIES = 4, 3, 4, 24
MOST = WIDTH * PAGE_SIZE  # tokens that a table has room for
HEADS, HEAD_DIM, SCALE = 2, 8, 0.3
RANDOM = np.random.default_rng(5)
PAGES = RANDOM.normal(size=(ROWS * WIDTH + 1, 1, 2, PAGE_SIZE, 1, HEAD_DIM))
TABLE = RANDOM.permutation(ROWS * WIDTH).reshape(ROWS, WIDTH)
Q = RANDOM.normal(size=(QUERIES, HEADS, HEAD_DIM))
MASKS: list[dict[str, Any]] = [
    {},
    {"window": 3},
    {"slopes": np.array([0.2, 0.7])},
    {"sinks": np.array([-1.0, 2.0]), "soft_cap": 4.0},
]
masks = st.integers(0, len(MASKS) - 1)
# Of a row: its length, the position of its first new token, and where that is.
row = st.tuples(
    st.one_of(st.integers(-3, 2 * MOST), st.just(2**31 - 1)),
    st.integers(-2 * MOST, 2 * MOST),
    st.integers(-5, QUERIES + 5),
)


def layer() -> Any:
    return KVCache.page_major(jnp.asarray(PAGES, jnp.float32)).layer(0)


def scores(mask: dict[str, Any]) -> ScoreSpec:
    slopes, sinks = (
        jnp.asarray(mask[name], jnp.float32) if name in mask else None
        for name in ("slopes", "sinks")
    )
    return ScoreSpec(slopes, SCALE, mask.get("soft_cap"), mask.get("window"), sinks)


@functools.cache
def program(op: Op[Any, Any], implementation: str, mask: int) -> Callable[..., Any]:
    """One for all examples: what queries find."""
    kinds: dict[Any, Any] = {
        decode_attention.OP: DecodeAttention,
        prefill_attention.OP: PrefillAttention,
        attention_states.OP: Attention,
    }
    others = (None,) if op is decode_attention.OP else ()
    spec = scores(MASKS[mask])

    def run(q: jax.Array, view: PageView) -> Any:
        with op.using(implementation):
            return op(kinds[op](q, layer(), view, spec, *others))

    return jax.jit(run)


def view_of(rows: list[tuple[int, int, int]]) -> PageView:
    lengths, starts, firsts = (
        jnp.asarray(each, jnp.int32) for each in zip(*rows, strict=True)
    )
    return PageView(jnp.asarray(TABLE, jnp.int32), lengths, starts, firsts)


def expected(row: int, position: int, q: np.ndarray, mask: int) -> np.ndarray:
    """What a query finds that stands there."""
    k, v = PAGES[TABLE[row], 0].swapaxes(0, 1).reshape(2, MOST, 1, HEAD_DIM)
    own: dict[str, Any] = {"start": position, "scale": SCALE, **MASKS[mask]}
    return dense_attention(q[None], k, v, **own)[0]


def taken(length: int, start: int, first: int) -> range:
    """The places among the queries that a row takes."""
    count = min(length, MOST) - start
    return range(first, min(first + count, QUERIES)) if first >= 0 else range(0)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(row, min_size=ROWS, max_size=ROWS), mask=masks)
@pytest.mark.parametrize("implementation", ["reference", "cpu"])
def test_rows_whose_queries_are_theirs_alone_keep_their_results(
    implementation: str, rows: list[tuple[int, int, int]], mask: int
):
    if implementation == "cpu":
        skip_without("prefill_attention", "cpu")
    run = program(prefill_attention.OP, implementation, mask)
    found = np.asarray(run(jnp.asarray(Q, jnp.float32), view_of(rows))[0])
    places = [taken(*each) for each in rows]
    for index, own in enumerate(places):
        others = {p for at, each in enumerate(places) for p in each if at != index}
        if others.intersection(own):
            continue
        for place in own:
            position = rows[index][1] + place - rows[index][2]
            if position < 0:
                assert not found[place].any(), "it stands before its sequence"
            else:
                want = expected(index, position, Q[place], mask)
                assert_close(jnp.asarray(found[place]), want, reduction=64)
    alone = {place for each in places for place in each}
    assert not found[[p not in alone for p in range(QUERIES)]].any()


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(row, min_size=ROWS, max_size=ROWS), mask=masks)
def test_the_handler_and_states_are_the_definition_for_all_rows(
    rows: list[tuple[int, int, int]], mask: int
):
    """Rows that overlap, too: the one that begins nearest before a query has it."""
    skip_without("prefill_attention", "cpu")
    q, view = jnp.asarray(Q, jnp.float32), view_of(rows)
    defined = program(prefill_attention.OP, "reference", mask)(q, view)[0]
    served = program(prefill_attention.OP, "cpu", mask)(q, view)[0]
    assert_close(served, defined, reduction=64)
    states = program(attention_states.OP, "reference", mask)(q, view)
    assert_close(states.output, defined, reduction=64)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.one_of(st.integers(-3, 3 * MOST), st.just(2**31 - 1)),
        min_size=ROWS,
        max_size=ROWS,
    ),
    mask=masks,
)
@pytest.mark.parametrize("implementation", ["reference", "cpu"])
def test_rows_that_decode_have_no_more_tokens_than_their_table(
    implementation: str, lengths: list[int], mask: int
):
    if implementation == "cpu":
        skip_without("decode_attention", "cpu")
    view = PageView.decoding(
        jnp.asarray(TABLE, jnp.int32), jnp.asarray(lengths, jnp.int32)
    )
    q = jnp.asarray(Q[:ROWS], jnp.float32)
    found, _ = program(decode_attention.OP, implementation, mask)(q, view)
    for index, length in enumerate(lengths):
        if length <= 0:
            assert not found[index].any()
        else:
            want = expected(index, min(length, MOST) - 1, Q[index], mask)
            assert_close(found[index], want, reduction=64)


@pytest.mark.parametrize("implementation", ["reference", "cpu"])
def test_without_firsts_a_row_has_its_room_and_no_more(implementation: str):
    """The first has more tokens than that, and so has the last."""
    if implementation == "cpu":
        skip_without("prefill_attention", "cpu")
    lengths = (9, 3, 0, 11)
    view = PageView(jnp.asarray(TABLE, jnp.int32), jnp.asarray(lengths, jnp.int32))
    q, room = jnp.asarray(Q, jnp.float32), QUERIES // ROWS
    found = program(prefill_attention.OP, implementation, 0)(q, view)[0]
    for place in range(QUERIES):
        index, position = divmod(place, room)
        if position < lengths[index]:
            want = expected(index, position, Q[place], 0)
            assert_close(found[place], want, reduction=64)
        else:
            assert not found[place].any()
