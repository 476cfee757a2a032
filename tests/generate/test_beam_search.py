"""Beam search alone: tokens, parents and scores, all equal to transformers'."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import RequestError
from fdjax.generate.beam_length import longest_search
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_search import log_probabilities, search
from fdjax.generate.beam_state import OUT, BeamState, init_beams
from fdjax.generate.beam_trace import BeamTrace, TracedStep
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.stopping import FinishReason
from tests.support import beam_cases
from tests.support.beam_cases import VOCAB_SIZE, cases, expected, run
from tests.support.numerics import assert_close

GROUPS = 24


def test_groups_of_all_widths_side_by_side_are_those_of_transformers():
    """Each call has groups of several widths, limits, end tokens and early stops."""
    all_cases = cases()
    found = [one for some in itertools.batched(all_cases, GROUPS) for one in run(some)]
    assert found == expected()


def test_the_cases_differ_in_what_matters():
    found = expected()
    lengths = {len(tokens) for one in found for tokens in one.tokens}
    limits = {case.params["max_tokens"] for case in cases()}
    reordered = [one for one in found if any(any(parents) for parents in one.parents)]
    assert lengths >= {1, 2, 3, 5, 8, 12}
    assert len(lengths) > len(limits), "some end before their limits"
    assert len(reordered) > len(found) / 2


def test_a_group_alone_in_a_narrow_state_finds_the_same():
    for place in (0, 7, 19):
        case = cases()[place]
        width = case.params["beam_width"]
        assert run([case], width) == [expected()[place]]


def test_one_beam_is_greedy():
    case = dataclasses.replace(
        cases()[0],
        ends=(),
        params={"beam_width": 1, "max_tokens": 6, "n": 1, "logit_bias": {}},
    )
    tokens: list[int] = []
    for _ in range(6):
        tokens.append(
            int(beam_cases.logprobs(case.seed, [*case.prompt, *tokens]).argmax())
        )
    assert run([case], 1)[0].tokens == [tokens]


def test_steps_compile_once_for_all_groups_of_one_maximum():
    some = cases()[:GROUPS]
    run(some)
    with jax.no_tracing(True):
        run(cases()[GROUPS : 2 * GROUPS])


def test_log_probabilities_are_those_of_the_softmax():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 1000)).astype(np.float32) * 10
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    assert_close(log_probabilities(jnp.asarray(logits)), exact, reduction=1000)


def test_logits_that_are_not_finite_end_their_group_alone():
    state = beam_cases.start(cases()[:3])
    logits = np.zeros((3, 16, VOCAB_SIZE), np.float32)
    logits[1, 0, 5] = np.nan
    step = jax.jit(search)
    _, progress = step(jnp.asarray(logits), state)
    assert progress.finished[1] == FinishReason.NON_FINITE
    again, later = step(jnp.zeros_like(logits), BeamState(state.rules, progress))
    assert later.finished[1] == FinishReason.NON_FINITE
    assert FinishReason.NON_FINITE not in (
        int(later.finished[0]),
        int(later.finished[2]),
    )
    assert again.parents[1].tolist() == list(range(16)), "it stands still"


def test_a_trace_follows_parents():
    trace = BeamTrace()
    trace.add(TracedStep([10, 11], [0, 0]))
    trace.add(TracedStep([20, 21], [1, 0]))
    assert trace.path(0, 2) == ([11, 20], [0, 1])
    assert trace.hypothesis(1, 30, 3) == ([10, 21, 30], [0, 0, 1])
    assert trace.path(1, 0) == ([], [])


@pytest.mark.parametrize("penalty", [-10.0, -5.0, -3.0, -1.0, 0.0, 1.0, 4.0, 8.0, 10.0])
def test_up_to_the_longest_search_scores_differ_as_sums_do(penalty: float):
    """Float32 holds them, above what is out; there may be room for more tokens."""
    params = BeamSearchParams(beam_width=1, length_penalty=penalty, max_tokens=None)
    longest = min(longest_search(params), 9000)
    params = dataclasses.replace(params, max_tokens=longest)
    state = init_beams(
        [params], [[1]], width=1, limit=9000, vocab_size=8, eos_token_ids=(),
        plan=SamplingPlan(),
    )  # fmt: skip
    divisors = np.asarray(state.rules.divisors)[0]
    assert np.isfinite(divisors).all() and (divisors > 0).all()
    powers = [float(count) ** penalty for count in range(1, longest + 1)]
    assert np.array_equal(divisors[1 : longest + 1], np.array(powers, np.float32))
    sums = np.float32(-16) * np.arange(1, longest + 1, dtype=np.float32)
    assert (sums / divisors[1 : longest + 1] > OUT / 2 * 1.0001).all()
    least = np.finfo(np.float32).eps / divisors[longest]
    assert least >= np.finfo(np.float32).tiny
    narrow = dataclasses.replace(params, allowed_token_ids=[1])
    limit = min(longest_search(narrow), longest)
    assert OUT / 2 / divisors[limit] < -15.9


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"beam_width": 0}, "beam_width is 0"),
        ({"beam_width": 513}, "from 1 to 512"),
        ({"n": 5}, "n is 5 but beam_width is 4"),
        ({"early_stopping": "always"}, "early_stopping is 'always'"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"temperature": 0.7}, "temperature is 0.7, but a beam search draws"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": 20}, "min_tokens is 20 but max_tokens is 16"),
        ({"logit_bias": {3: 200.0}}, "logit_bias of token 3"),
    ],
)
def test_bad_parameters_are_named(wrong: dict[str, object], told: str):
    with pytest.raises(RequestError, match=told):
        BeamSearchParams(**({"beam_width": 4} | wrong))  # pyright: ignore[reportArgumentType]  (wrong on purpose)
