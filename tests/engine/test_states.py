"""What sequences ask of sampling, as arrays: nobody's where none has asked."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SERVING_PLANS, SamplingPlan
from fdjax.generate.sampling_state import SamplingState, init_state
from tests.support.engines import GREEDY, tiny_engine
from tests.support.matchers import Places

SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=9)
PENALISED = dataclasses.replace(SEEDED, repetition_penalty=1.5)
BANNED = dataclasses.replace(GREEDY, bad_words=((7, 8),))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine()


def arrived(
    engine: Engine, *kinds: SamplingParams, grammar: Places | None = None
) -> list[EngineSequence]:
    """Sequences in the first rows, of which none has a token yet."""
    requests = [
        engine.request(index, [5, 6 + index], kind, grammar)
        for index, kind in enumerate(kinds)
    ]
    sequences = [engine.add(request) for request in requests]
    for row, sequence in enumerate(sequences):
        engine.abort(sequence)
        sequence.row = row
    return sequences


def whole(
    engine: Engine, sequences: list[EngineSequence], plan: SamplingPlan
) -> SamplingState:
    """All stages, made for these."""
    matchers = [sequence.matcher for sequence in sequences]
    return init_state(
        [sequence.request.limited_params for sequence in sequences],
        [sequence.request.prompt for sequence in sequences],
        plan=plan,
        vocab_size=engine.config.embedding.vocab_size,
        eos_token_ids=engine.config.eos_token_ids,
        default_seeds=[sequence.seed for sequence in sequences],
        num_rows=engine.buckets.prefill_rows,
        masks=[None if one is None else one.mask() for one in matchers],
    )


def large(state: SamplingState) -> dict[str, Any]:
    """What has something for each token of the vocabulary."""
    rules, progress = state.rules, state.progress
    return {
        "masks": rules.allowed,
        "penalties": rules.penalties and rules.penalties.in_prompt,
        "lists": rules.lists and rules.lists.allowed,
        "counts": progress.output_counts,
    }


@pytest.mark.parametrize("plan", SERVING_PLANS, ids=["greedy", "drawn", "all"])
def test_only_what_was_asked_for_is_made(engine: Engine, plan: SamplingPlan):
    states = engine.executor._states
    sequences = arrived(engine, GREEDY, SEEDED)
    state = states.arrivals(sequences, plan).state
    expected, nobody = whole(engine, sequences, plan), states.arrivals([], plan).state
    jax.tree.map(_same, state.rules.stopping, expected.rules.stopping)
    jax.tree.map(_same, state.rules.randomness, expected.rules.randomness)
    for name, found in large(state).items():
        assert found is large(nobody)[name]
        assert (found is None) == (large(expected)[name] is None)


@pytest.mark.parametrize(
    ("kinds", "made"),
    [((GREEDY, PENALISED), {"penalties", "counts"}), ((BANNED, SEEDED), {"lists"})],
)
def test_what_one_asks_for_is_made_for_all(
    engine: Engine, kinds: tuple[SamplingParams, ...], made: set[str]
):
    states, plan = engine.executor._states, SERVING_PLANS[-1]
    sequences = arrived(engine, *kinds)
    state, nobody = states.arrivals(sequences, plan).state, states.arrivals([], plan)
    theirs, others = large(state), large(nobody.state)
    assert {name for name in theirs if theirs[name] is not others[name]} == made
    expected = large(whole(engine, sequences, plan))
    for name in made:
        _same(theirs[name], expected[name])


def test_a_mask_is_its_sequences_own(engine: Engine):
    plan = SERVING_PLANS[0]
    grammar = Places([{5, 9}, {40}], engine.config.embedding.vocab_size)
    sequences = arrived(engine, GREEDY, grammar=grammar)
    state = engine.executor._states.arrivals(sequences, plan).state
    jax.tree.map(_same, state, whole(engine, sequences, plan))


@pytest.mark.parametrize("plan", SERVING_PLANS, ids=["greedy", "drawn", "all"])
def test_rows_that_nobody_has_are_all_like_one(engine: Engine, plan: SamplingPlan):
    expected = init_state(
        [],
        [],
        plan=plan,
        vocab_size=engine.config.embedding.vocab_size,
        eos_token_ids=engine.config.eos_token_ids,
        default_seeds=[],
        num_rows=engine.buckets.rows[-1],
    )
    found = engine.executor._states.empty(plan)
    jax.tree.map(_same, found, expected)


def _same(one: Any, other: Any) -> None:
    assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
