"""Requests in rows: seated, moved and masked without a trace in the others'."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate import rows
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.progress import GenerationProgress, decode_rows
from fdjax.generate.row_pages import RowPages
from fdjax.generate.sampling_state import SamplingRules, SamplingState, init_state
from fdjax.kernels.paged import KVCache
from tests.support.engines import layout_of, shallow_model
from tests.support.numerics import assert_close

NUM_ROWS, VOCABULARY = 4, 131
sample = jax.jit(rows.sample_rows, static_argnames="plan")
PLAN = SamplingPlan(stochastic=True, penalties=True, masks=True, num_stop_ids=4)
GREEDY_PLAN = SamplingPlan()
LENGTHS = (3, 1, 2, 5)
HIDDEN = 64
TABLE = jnp.arange(NUM_ROWS, dtype=jnp.int32)[:, None]  # a page for each row


def state_of(count: int, *, num_rows: int, plan: SamplingPlan = PLAN) -> SamplingState:
    """Requests that differ in everything that has a row."""
    return init_state(
        [
            SamplingParams(
                temperature=0.0 if plan is GREEDY_PLAN else 0.5 + row,
                max_tokens=20 + row,
                frequency_penalty=float(row > 0),
                ignore_eos=True,
            )
            for row in range(count)
        ],
        [[row, row + 5] for row in range(count)],
        plan=plan,
        vocab_size=VOCABULARY,
        eos_token_ids=[2],
        default_seeds=list(range(count)),
        num_rows=num_rows,
        outputs=[[row] * row for row in range(count)],
    )


def progress_of(state: SamplingState) -> GenerationProgress:
    """Rows whose pages hold noise, the same in every call."""
    shape = layout_of(shallow_model(), num_pages=NUM_ROWS, page_size=16).shape
    kv = np.random.default_rng(0).normal(size=shape)
    return GenerationProgress(
        kv=KVCache.page_major(jnp.asarray(kv, jnp.float32)),
        lengths=jnp.asarray(LENGTHS, jnp.int32),
        tokens=jnp.asarray([11, 12, 13, 14], jnp.int32),
        sampling=state.progress,
        table=TABLE,
    )


def by_row(*trees: SamplingRules | GenerationProgress) -> list[np.ndarray]:
    """Everything that has a row as its first axis: all but the pages."""
    parts = [
        (tree.lengths, tree.tokens, tree.sampling)
        if isinstance(tree, GenerationProgress)
        else tree
        for tree in trees
    ]
    return [np.array(leaf) for leaf in jax.tree.leaves(parts)]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_exchange_moves_everything_that_a_row_has():
    state = state_of(4, num_rows=NUM_ROWS)
    progress = progress_of(state)
    source = [2, 0, 3, 1]
    expected = [leaf[source] for leaf in by_row(state.rules, progress)]
    exchange = jax.jit(rows.exchange)
    found = exchange(state.rules, progress, jnp.asarray(source, jnp.int32))
    assert_same(by_row(*found), expected)
    np.testing.assert_array_equal(found[1].kv.array, progress.kv.array)


def test_arrivals_take_their_rows_and_padding_takes_none():
    """One row decodes beside them, and one stands still."""
    state, arrivals = state_of(4, num_rows=NUM_ROWS), state_of(2, num_rows=3)
    progress = progress_of(state)
    size = shallow_model().config.hidden_size
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(NUM_ROWS, size)))
    places = np.array([3, 1, NUM_ROWS], np.int32)
    rules, after, sampled = sample(
        shallow_model(),
        hidden.astype(jnp.float32),
        jnp.asarray([True, False, False, False]),
        rows.Arrivals(arrivals, jnp.asarray(places), jnp.asarray([7, 8, 9], jnp.int32)),
        state.rules,
        progress,
        plan=PLAN,
    )
    assert after.lengths.tolist() == [4, 8, 2, 7]
    chosen = sampled.tokens.tolist()
    assert after.tokens.tolist() == [chosen[0], chosen[1], 13, chosen[3]]
    # Requests 0 and 1 had emitted 0 tokens and 1; each has one more now.
    assert after.sampling.generated.tolist() == [1, 2, 2, 1]
    assert after.sampling.finished.tolist() == [0] * 4
    assert sampled.finished.tolist() == [0, 0, 1, 0], "it counts as finished"
    expected = by_row(state.rules)
    for leaf, new in zip(expected, by_row(arrivals.rules), strict=True):
        leaf[places[:2]] = new[:2]
    assert_same(by_row(rules), expected)


def test_masks_are_replaced_row_by_row():
    before = np.arange(NUM_ROWS * 5, dtype=np.uint32).reshape(NUM_ROWS, 5)
    masks = np.full((3, 5), 99, np.uint32) + np.arange(3, dtype=np.uint32)[:, None]
    places = np.array([2, NUM_ROWS, 0], np.int32)
    after = rows.allow(jnp.asarray(before), jnp.asarray(places), jnp.asarray(masks))
    expected = before.copy()
    expected[[2, 0]] = masks[[0, 2]]
    np.testing.assert_array_equal(after, expected)


# --- Decoding -------------------------------------------------------------------------

decode = jax.jit(decode_rows, static_argnames=("plan", "num_steps"))


def decoded(
    rules: SamplingRules, progress: GenerationProgress, steps: list[int]
) -> tuple[GenerationProgress, list[list[int]]]:
    """Three steps of the first rows; the tokens of the steps each takes part in."""
    nothing, counts = jnp.zeros((3, 0), jnp.int32), np.sign(steps).astype(np.int32)
    progress, sampled = decode(
        shallow_model(),
        rules,
        progress,
        RowPages(nothing, jnp.asarray(counts), 1),
        jnp.asarray(steps, jnp.int32),
        plan=GREEDY_PLAN,
        num_steps=3,
    )
    finished = np.asarray(sampled.finished).T
    still = [[False] * count + [True] * (3 - count) for count in steps]
    np.testing.assert_array_equal(finished > 0, still)
    tokens = np.asarray(sampled.tokens).T.tolist()
    return progress, [row[:count] for row, count in zip(tokens, steps, strict=True)]


def test_a_row_that_stands_still_goes_on_where_it_was():
    state = state_of(4, num_rows=NUM_ROWS, plan=GREEDY_PLAN)
    whole, expected = decoded(state.rules, progress_of(state), [3, 3, 3])
    middle, first = decoded(state.rules, progress_of(state), [3, 1, 0])
    assert middle.lengths.tolist() == [6, 2, 2, 5]
    end, rest = decoded(state.rules, middle, [0, 2, 3])
    assert [a + b for a, b in zip(first, rest, strict=True)] == expected
    assert_same(by_row(end), by_row(whole))
    assert end.lengths.tolist() == [6, 4, 5, 5], "the last row is in none of the calls"


# --- Prompts, beside rows that decode -------------------------------------------------


def extended(
    progress: GenerationProgress, call: rows.RowTokens
) -> tuple[GenerationProgress, jax.Array]:
    extend = jax.jit(rows.extend_rows, static_argnames=("mixed",))
    after, hidden = extend(shallow_model(), progress, call, mixed=True)
    return after, shallow_model().logits(hidden)


def call_of(
    new: dict[int, list[int]], *, starts: list[int], decodes: list[int]
) -> rows.RowTokens:
    """Tokens of prompts by row; those of rows that decode are not told."""
    packed = [
        token
        for row in range(NUM_ROWS)
        for token in ([99] if row in decodes else new.get(row, []))
    ]
    tokens = jnp.asarray(packed + [98] * (16 - len(packed)), jnp.int32)
    lengths = [starts[r] + len(new[r]) if r in new else 0 for r in range(NUM_ROWS)]
    begin = [starts[r] if r in new else 0 for r in range(NUM_ROWS)]
    return rows.RowTokens(
        tokens,
        jnp.asarray(begin, jnp.int32),
        jnp.asarray(lengths, jnp.int32),
        jnp.asarray([*sorted(new), NUM_ROWS], jnp.int32),
        jnp.asarray([row in decodes for row in range(NUM_ROWS)]),
        RowPages.all_of(TABLE),
    )


def test_rows_of_both_kinds_get_what_each_gets_alone():
    """Row 0 and 3 decode after 3 and 5 tokens; 1 goes on after 4; 2 is not there."""
    progress = progress_of(state_of(4, num_rows=NUM_ROWS, plan=GREEDY_PLAN))
    new, starts = {1: [7, 8, 9, 10, 11]}, [0, 4, 0, 0]
    both, logits = extended(progress, call_of(new, starts=starts, decodes=[0, 3]))
    prompt, of_prompt = extended(progress, call_of(new, starts=starts, decodes=[]))
    decoded, of_decoded = extended(progress, call_of({}, starts=starts, decodes=[0, 3]))
    assert_close(logits[1], of_prompt[1], reduction=HIDDEN)
    assert_close(logits[::3], of_decoded[::3], reduction=HIDDEN)
    before = np.asarray(progress.kv.array)
    for page, alone in ((0, decoded), (1, prompt), (3, decoded)):
        assert_close(both.kv.array[page], alone.kv.array[page], reduction=HIDDEN)
        assert np.any(np.asarray(both.kv.array[page]) != before[page])
    np.testing.assert_array_equal(both.kv.array[2], before[2])
    assert both.lengths.tolist() == list(LENGTHS), "`sample_rows` counts them"


def test_a_row_that_decodes_gets_what_a_decode_step_gives():
    """Beside row 1, whose prompt goes on."""
    state = state_of(4, num_rows=NUM_ROWS, plan=GREEDY_PLAN)
    _, tokens = decoded(state.rules, progress_of(state), [1, 3, 1, 1])
    call = call_of({1: [7, 8]}, starts=[0, 1, 0, 0], decodes=[0, 2, 3])
    extend = jax.jit(rows.extend_rows, static_argnames="mixed")
    progress, hidden = extend(shallow_model(), progress_of(state), call, mixed=True)
    nobody = rows.Arrivals(
        state_of(0, num_rows=1, plan=GREEDY_PLAN),
        jnp.asarray([NUM_ROWS], jnp.int32),
        jnp.zeros(1, jnp.int32),
    )
    rules, after, sampled = sample(
        shallow_model(),
        hidden,
        call.decodes,
        nobody,
        state.rules,
        progress,
        plan=GREEDY_PLAN,
    )
    assert_same(by_row(rules), by_row(state.rules))
    first = [tokens[0][0], 12, tokens[2][0], tokens[3][0]]
    assert after.tokens.tolist() == first
    assert after.lengths.tolist() == [4, 1, 3, 6], "row 1 is not seated yet"
    assert after.sampling.generated.tolist() == [1, 1, 3, 4]
    assert (np.asarray(sampled.finished) > 0).tolist() == [False, True, False, False]
