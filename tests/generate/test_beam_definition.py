"""Diverse groups, bans and log-probabilities of beams, by the definition in NumPy."""

import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_search import choose
from fdjax.generate.beam_state import OUT, BeamState, init_beams
from fdjax.generate.beam_trace import BeamTrace, TracedStep
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.stopping import FinishReason
from tests.support import beam_cases
from tests.support.beam_cases import LIMIT, VOCAB_SIZE, BeamCase
from tests.support.beam_definition import Search

PLAN = SamplingPlan(num_stop_ids=3, num_biased=4, penalties=True)
BANS = dataclasses.replace(PLAN, token_lists=True)
_step = jax.jit(choose)

type Found = list[tuple[list[int], float]]


def definition(case: BeamCase, params: BeamSearchParams, **more: Any) -> Found:
    def logprobs(prefix: Any) -> np.ndarray:
        return beam_cases.logprobs(case.seed, prefix)

    return Search(params, case.prompt, logprobs, **more).found()


def searched(
    case: BeamCase, params: BeamSearchParams, plan: SamplingPlan = PLAN
) -> Found:
    """What the steps of the device find, by groups of one search."""
    groups, width = params.num_beam_groups, 4
    state = init_beams(
        [params] * groups,
        [case.prompt] * groups,
        width=width,
        limit=LIMIT,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
        plan=plan,
    )
    traces = [BeamTrace() for _ in range(groups)]
    while FinishReason.RUNNING in np.asarray(state.progress.finished).tolist():
        values = np.full((groups, width, VOCAB_SIZE), 7, np.float32)
        for group, trace in enumerate(traces):
            for beam in range(params.group_width):
                tokens, _ = trace.path(beam, len(trace))
                prefix = [*case.prompt, *tokens]
                values[group, beam] = beam_cases.logprobs(case.seed, prefix)
        chosen, progress = _step(jnp.asarray(values), state)
        for group, trace in enumerate(traces):
            tokens, parents = chosen.tokens[group], chosen.parents[group]
            trace.add(TracedStep(tokens.tolist(), parents.tolist()))
        state = BeamState(state.rules, progress)
    best = jax.device_get(state.progress.hypotheses)
    found: Found = []
    for group, trace in enumerate(traces):
        for place in range(params.group_width):
            parent, token = best.parents[group, place], best.tokens[group, place]
            length, score = best.lengths[group, place], best.scores[group, place]
            total = score * length**params.length_penalty
            if best.present[group, place] and total > OUT / 2:
                tokens, _ = trace.hypothesis(int(parent), int(token), int(length))
                found.append((tokens, float(score)))
    found.sort(key=lambda one: -one[1])
    return found[: params.n]


def test_the_definition_is_that_of_transformers():
    for case, expected in zip(beam_cases.cases(), beam_cases.expected(), strict=True):
        found = definition(case, case.search_params)
        assert [tokens for tokens, _ in found] == expected.tokens
        assert [score for _, score in found] == expected.scores


@pytest.mark.parametrize("seed", range(24))
def test_diverse_groups_are_those_of_the_definition(seed: int):
    rng = random.Random(seed)
    case = beam_cases.cases(seed + 1)[seed]
    params = dataclasses.replace(
        case.search_params,
        num_beam_groups=rng.choice((1, 2, 4)),
        beam_width=4,
        n=rng.choice((1, 4)),
    )
    if params.num_beam_groups > 1:
        # In steps that float32 subtracts exactly.
        penalty = rng.choice((0.0, 0.5, 3.0))
        params = dataclasses.replace(params, diversity_penalty=penalty)
    assert searched(case, params) == definition(case, params)


def test_groups_differ_where_they_are_asked_to():
    case = dataclasses.replace(beam_cases.cases()[0], ends=())
    params = BeamSearchParams(beam_width=4, num_beam_groups=4, max_tokens=3, n=4)
    alike = searched(case, params)
    assert len({tuple(tokens) for tokens, _ in alike}) == 1
    diverse = dataclasses.replace(params, diversity_penalty=100.0)
    first = {tokens[0] for tokens, _ in searched(case, diverse)}
    assert len(first) == 4


@pytest.mark.parametrize("seed", range(6))
def test_banned_tokens_and_words_do_not_come(seed: int):
    case = beam_cases.cases(seed + 1)[seed]
    free = dataclasses.replace(case.search_params, beam_width=3, n=3)
    (best, _), *_ = definition(case, free)
    word = tuple(best[:2])
    allowed = [token for token in range(VOCAB_SIZE) if token != best[-1]]
    params = dataclasses.replace(free, bad_words=[word], allowed_token_ids=allowed)

    def may(tokens: list[int]) -> bool:
        return tokens[-1] in allowed and tuple(tokens[-len(word) :]) != word

    found = searched(case, params, BANS)
    assert found == definition(case, params, may=may)
    assert found != definition(case, free)


def test_what_continues_no_beam_is_not_found():
    """With one token that may come there is one output; 3 beams continue none."""
    case = beam_cases.cases()[0]
    params = dataclasses.replace(
        case.search_params,
        beam_width=4,
        n=4,
        max_tokens=5,
        length_penalty=1.0,
        stop_token_ids=(),
        allowed_token_ids=[7],
    )
    found = searched(case, params, BANS)
    assert [tokens for tokens, _ in found] == [[7] * 5]
    assert found == definition(case, params, may=lambda tokens: tokens[-1] == 7)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"num_beam_groups": 3}, "num_beam_groups is 3, which does not divide .* 4"),
        ({"num_beam_groups": 0}, "num_beam_groups is 0"),
        ({"diversity_penalty": 1.0}, r"diversity_penalty is 1, but num_beam_groups"),
        ({"num_beam_groups": 2, "diversity_penalty": -1}, "diversity_penalty is -1"),
        ({"num_beam_groups": 2, "stop": ["a"]}, "stop needs beams that are judged"),
        ({"stream_best": 1}, "stream_best is 1"),
    ],
)
def test_what_groups_cannot_be_is_said(wrong: dict[str, Any], told: str):
    fields: dict[str, Any] = {"beam_width": 4} | wrong
    with pytest.raises(RequestError, match=told):
        BeamSearchParams(**fields)
