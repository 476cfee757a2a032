"""What a request asks for, from one process to the other."""

import json
from typing import Any

import pytest

from fdjax import BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputs
from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import Waiting
from fdjax.errors import EngineDeadError, QueueFullError, QuotaError, RequestError
from fdjax.generate.any_params import AnyParams
from fdjax.serve.apart import asking
from fdjax.serve.tickets import Submission
from tests.support.fake_engine import FakeEngine


def crossed(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(
            temperature=0.1,
            top_p=0.3,
            top_k=5,
            logit_bias={7: 1.5, 8: -100},
            allowed_token_ids=[1, 2],
            bad_words=[[1, 2], [3]],
            seed=2**63 - 1,
            stop=["a", "\u2028"],
            stop_token_ids=[4],
            max_tokens=None,
            logprobs=0,
            prompt_logprobs=3,
            n=3,
        ),
        SamplingParams(structured_outputs=StructuredOutputs(regex="a+", after="x")),
        SamplingParams(structured_outputs=StructuredOutputs(json={"type": "object"})),
        SamplingParams(structured_outputs=StructuredOutputs(choice=["a", "b"])),
        BeamSearchParams(beam_width=4, n=2, early_stopping="never", stop="."),
        BeamSearchParams(beam_width=4, num_beam_groups=2, stream_best=True),
        PoolingParams(),
        PoolingParams(pooling="mean", normalize=False, dimensions=8),
    ],
)
def test_parameters(params: AnyParams):
    assert asking.params_heard(crossed(asking.params_told(params))) == params


def test_the_origin():
    origin = Origin("\u00e9", "1.2.3.4", -3, b"\x00\xff", 4, 5, leaves_room=True)
    come = asking.origin_heard(crossed(asking.origin_told(origin)))
    assert vars(come) == vars(origin)


@pytest.mark.parametrize("prompt", [[], [1, 2, 2**31], [-1], [2**70, 3]])
def test_prompts_whatever_they_hold(prompt: list[int]):
    """What is no token the engine refuses."""
    submissions = [Submission(4, prompt, SamplingParams(n=2))]
    told, columns = asking.prompts_told(submissions)
    params = submissions[0].params
    assert asking.submissions_heard(crossed(told), columns, params) == submissions


def test_requests_are_those_that_the_engine_checked():
    engine = FakeEngine()
    for params in (SamplingParams(n=3, seed=5, max_tokens=None), PoolingParams()):
        submission = Submission(1, [5, 6], params)
        first, *others = submission.samples
        one = engine.request(1, [5, 6], first)
        samples = (other for other in others if isinstance(other, SamplingParams))
        checked = [one, *map(one.sampled, samples)]
        assert asking.requests_of(submission, one.max_tokens) == checked


@pytest.mark.parametrize(
    "kind", [RequestError, QueueFullError, QuotaError, EngineDeadError]
)
def test_refusals_keep_their_class_and_words(kind: type[Exception]):
    come = asking.error_heard(crossed(asking.error_told(kind("so it is"))))
    assert type(come) is kind
    assert str(come) == "so it is"


def test_another_error_is_no_refusal():
    come = asking.error_heard(asking.error_told(ZeroDivisionError("oh")))
    assert type(come) is RuntimeError
    assert str(come) == "ZeroDivisionError: oh"


def test_what_waits_and_what_was_counted():
    waiting = Waiting(Load(1, 2, 3), {"a": Load(1, 1, 1)})
    assert asking.waiting_heard(crossed(asking.waiting_told(waiting))) == waiting
    looked = FakeEngine().statistics()
    come = asking.statistics_heard(crossed(asking.statistics_told(looked)))
    assert come == looked
