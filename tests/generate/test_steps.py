"""`prefill`, `extend`, `score` and `decode`: where things lie changes no result."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.generate import steps
from fdjax.kernels.matmul import matmul
from fdjax.kernels.paged import KVCache
from tests.support.engines import PROMPTS, layout_of, tiny_model
from tests.support.numerics import assert_close

PAGE_SIZE, NUM_PAGES, WIDTH, PADDED = 8, 14, 3, 16
NEXT = ([11, 12, 13], [4, 5, 6], [99, 98, 97], [1, 2, 3])  # fed after the prompt
REDUCTION = 77  # the longest sum, of the feed-forward part

prefill, extend, score, decode = (
    jax.jit(function)
    for function in (steps.prefill, steps.extend, steps.score, steps.decode)
)


def tables(pages: list[int], *, width: int = WIDTH) -> jax.Array:
    """The page table that deals `pages` to the prompts, three to each."""
    table = np.full((len(PROMPTS), width), NUM_PAGES, np.int32)
    table[:, :WIDTH] = np.array(pages[: WIDTH * len(PROMPTS)]).reshape(-1, WIDTH)
    return jnp.asarray(table)


def empty(*, page_size: int = PAGE_SIZE, num_pages: int = NUM_PAGES) -> KVCache:
    return layout_of(tiny_model(), num_pages=num_pages, page_size=page_size).allocate()


def padded(prompts: list[list[int]]) -> tuple[jax.Array, jax.Array]:
    tokens = np.zeros((len(prompts), PADDED), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return jnp.asarray(tokens), jnp.asarray([len(p) for p in prompts], jnp.int32)


def logits_of(
    kv: KVCache, table: jax.Array, *, prompts: list[list[int]] | None = None
) -> jax.Array:
    """Logits `[B, 4, V]` after the prompts and after each token that follows."""
    tokens, lengths = padded(list(PROMPTS) if prompts is None else prompts)
    logits, kv = prefill(tiny_model(), kv, tokens, lengths, table)
    collected = [logits]
    for following in NEXT:
        row_tokens = np.zeros(len(table), np.int32)
        row_tokens[: len(following)] = following
        logits, kv = decode(tiny_model(), kv, jnp.asarray(row_tokens), lengths, table)
        lengths = jnp.where(lengths > 0, lengths + 1, 0)
        collected.append(logits)
    return jnp.stack(collected, axis=1)


@functools.cache
def expected() -> jax.Array:
    return logits_of(empty(), tables(list(range(NUM_PAGES))))


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(NUM_PAGES)))
def test_the_order_of_pages_changes_not_a_bit(pages: list[int]):
    np.testing.assert_array_equal(logits_of(empty(), tables(pages)), expected())


@pytest.mark.parametrize("left_behind", [jnp.nan, jnp.inf, 1e30])
def test_what_pages_held_before_changes_not_a_bit(left_behind: float):
    kv = jax.tree.map(lambda a: jnp.full_like(a, left_behind), empty())
    result = logits_of(kv, tables(list(range(NUM_PAGES))))
    np.testing.assert_array_equal(result, expected())


@pytest.mark.parametrize("page_size", [1, 5, 24])
def test_page_size_changes_nothing(page_size: int):
    width = -(-24 // page_size)
    pages = np.arange(3 * width, dtype=np.int32)[::-1].reshape(3, width)
    kv = empty(page_size=page_size, num_pages=3 * width)
    result = logits_of(kv, jnp.asarray(pages))
    assert_close(result, expected(), reduction=REDUCTION)


def test_a_wider_page_table_changes_nothing():
    table = tables(list(range(NUM_PAGES)), width=WIDTH + 2)
    assert_close(logits_of(empty(), table), expected(), reduction=REDUCTION)


def test_padding_rows_change_nothing_and_write_nothing():
    table = tables(list(range(NUM_PAGES)))
    absent = jnp.full((2, WIDTH), NUM_PAGES, jnp.int32)
    table = jnp.concatenate([table, absent])
    result = logits_of(empty(), table, prompts=[*PROMPTS, [], []])
    assert_close(result[:3], expected(), reduction=REDUCTION)

    tokens, lengths = padded([[], [], []])
    absent = jnp.full((3, WIDTH), NUM_PAGES, jnp.int32)
    _, kv = prefill(tiny_model(), empty(), tokens, lengths, absent)
    assert not kv.array.any()
    _, kv = decode(tiny_model(), kv, lengths, lengths, absent)
    assert not kv.array.any()


def test_prefill_is_the_last_token_of_score():
    table = tables(list(range(NUM_PAGES)))
    tokens, lengths = padded(list(PROMPTS))
    logits, _ = score(tiny_model(), empty(), tokens, lengths, table)
    last = jnp.stack([row[n - 1] for row, n in zip(logits, lengths, strict=True)])
    assert_close(last, expected()[:, 0], reduction=REDUCTION)


@pytest.mark.parametrize("width", [PADDED, 1])
def test_the_last_layer_goes_on_with_one_token_a_row(
    width: int, monkeypatch: pytest.MonkeyPatch
):
    """Of the others it makes keys and values alone."""
    rows: list[int] = []

    def recorded(x: jax.Array, *rest: Any, **options: Any) -> jax.Array:
        rows.append(x.shape[0])
        return matmul(x, *rest, **options)

    monkeypatch.setattr("fdjax.layers.linear.matmul", recorded)
    monkeypatch.setattr("fdjax.layers.mlp.matmul", recorded)  # of gate and up
    tokens, lengths = padded(list(PROMPTS))
    table = tables(list(range(NUM_PAGES)))
    jax.eval_shape(
        functools.partial(steps.prefill),
        *(tiny_model(), empty(), tokens[:, :width], jnp.minimum(lengths, width), table),
    )
    before, last = rows[:-3], rows[-3:]  # the last layer's output, up and down linear
    assert set(before) == {len(PROMPTS) * width}
    assert last == [len(PROMPTS)] * 3


def test_decoding_is_scoring_of_what_was_decoded():
    table = tables(list(range(NUM_PAGES)))
    whole = [
        [*prompt, *(following[row] for following in NEXT)]
        for row, prompt in enumerate(PROMPTS)
    ]
    logits, _ = score(tiny_model(), empty(), *padded(whole), table)
    for row, tokens in enumerate(whole):
        scored = logits[row, len(tokens) - 5 : len(tokens)]
        assert_close(scored, expected()[row], reduction=REDUCTION)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(
        st.tuples(*(st.integers(0, len(prompt)) for prompt in PROMPTS)),
        min_size=0,
        max_size=2,
    ),
    padding=st.integers(0, 3),
)
def test_ragged_calls_are_prefill_however_prompts_are_cut(
    cuts: list[tuple[int, ...]], padding: int
):
    """Rows without tokens in a call, and calls without any, among them."""
    kv, table = empty(), tables(list(range(NUM_PAGES)))
    ends = [len(prompt) for prompt in PROMPTS]
    stops = [*(sorted(of_row) for of_row in zip(*cuts, strict=True))] or [[]] * 3
    starts = [0] * len(PROMPTS)
    logits = jnp.full_like(expected()[:, 0], jnp.nan)
    for call in range(len(cuts) + 1):
        stop = [*(row[call] for row in stops)] if call < len(cuts) else ends
        packed = [
            token
            for prompt, first, last in zip(PROMPTS, starts, stop, strict=True)
            for token in prompt[first:last]
        ]
        packed += [7] * (sum(ends) + padding - len(packed))
        made, kv = extend(
            tiny_model(),
            kv,
            jnp.asarray(packed, jnp.int32),
            jnp.asarray(stop, jnp.int32),
            table,
            jnp.asarray(starts, jnp.int32),
        )
        last = jnp.asarray(stop) == jnp.asarray(ends)
        last &= jnp.asarray(stop) > jnp.asarray(starts)
        logits = jnp.where(last[:, None], made, logits)
        starts = stop
    assert_close(logits, expected()[:, 0], reduction=REDUCTION)
