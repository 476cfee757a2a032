"""plan_of: the smallest plan, with counts rounded up."""

import pytest

from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan, plan_of

GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize(
    ("params", "plan"),
    [
        ([], SamplingPlan()),
        ([GREEDY], SamplingPlan()),
        ([SamplingParams()], SamplingPlan(stochastic=True)),
        (
            [SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.1)],
            SamplingPlan(),
        ),
        ([SamplingParams(top_k=3), GREEDY], SamplingPlan(stochastic=True, top_k=True)),
        ([SamplingParams(top_p=0.5)], SamplingPlan(stochastic=True, top_p=True)),
        ([SamplingParams(min_p=0.5)], SamplingPlan(stochastic=True, min_p=True)),
        (
            [GREEDY, SamplingParams(temperature=0, repetition_penalty=1.1)],
            SamplingPlan(penalties=True),
        ),
        (
            [SamplingParams(temperature=0, presence_penalty=-0.1)],
            SamplingPlan(penalties=True),
        ),
        (
            [SamplingParams(temperature=0, frequency_penalty=0.1)],
            SamplingPlan(penalties=True),
        ),
        ([SamplingParams(temperature=0, min_tokens=1)], SamplingPlan(min_tokens=True)),
        (
            [SamplingParams(temperature=0, allowed_token_ids=[1])],
            SamplingPlan(token_lists=True),
        ),
        (
            [SamplingParams(temperature=0, bad_words=[[1]])],
            SamplingPlan(token_lists=True),
        ),
    ],
)
def test_contains_only_what_is_asked_for(
    params: list[SamplingParams], plan: SamplingPlan
):
    assert plan_of(params) == plan


def test_counts_are_rounded_up_over_the_batch():
    params = [
        SamplingParams(logprobs=0, stop_token_ids=[1], logit_bias={1: 1.0}),
        SamplingParams(logprobs=3, stop_token_ids=range(5)),
        GREEDY,
    ]
    plan = plan_of(params)
    assert (plan.num_logprobs, plan.num_stop_ids, plan.num_biased) == (5, 16, 16)


@pytest.mark.parametrize(
    ("asked", "given"), [(None, None), (0, 0), (1, 5), (5, 5), (6, 20), (20, 20)]
)
def test_logprobs(asked: int | None, given: int | None):
    assert plan_of([SamplingParams(logprobs=asked), GREEDY]).num_logprobs == given


def test_is_hashable():
    assert len({plan_of([GREEDY]), plan_of([GREEDY]), plan_of([SamplingParams()])}) == 2
