"""With `batch_invariant`, the bits of log-probabilities are the request's own."""

import dataclasses
import random
from collections.abc import Sequence

import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.request import Logprob
from fdjax.engine.runs import Runs
from fdjax.generate.params import SamplingParams
from fdjax.models import Decoder
from tests.support.engines import GREEDY, PROMPTS, tiny_engine, tiny_model

# Groups of heads, RMS norms and a window; five heads, layer norms, biases and ALiBi.
FAMILIES = ("qwen2_window", "bloom_published")
LONG = [int(token) for token in random.Random(0).choices(range(3, 90), k=24)]
LIKELIEST = dataclasses.replace(GREEDY, logprobs=3)
DRAWN = dataclasses.replace(LIKELIEST, temperature=1.0, top_p=0.9, seed=5)
ASKED = (
    *zip(PROMPTS, (LIKELIEST, DRAWN, LIKELIEST), strict=True),
    *((LONG[:count], params) for count in (17, 20) for params in (LIKELIEST, DRAWN)),
)

type Asked = Sequence[tuple[Sequence[int], SamplingParams]]
type Bits = list[tuple[int, Logprob]]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_model(request.param, batch_invariant=True)


@pytest.fixture(scope="module")
def engine(model: Decoder) -> Engine:
    return tiny_engine(model, max_num_seqs=3)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[Bits]:
    """What each request gives by itself, where nothing is found of earlier ones."""
    outputs: list[Bits] = []
    for one in ASKED:
        engine.scheduler.pool.forget()
        outputs += run(engine, [one])
    engine.scheduler.pool.forget()
    return outputs


def run(engine: Engine, asked: Asked) -> list[Bits]:
    """Tokens and log-probabilities of requests that are added together."""
    requests = [
        engine.request(index, prompt, params)
        for index, (prompt, params) in enumerate(asked)
    ]
    outputs: list[Bits] = [[] for _ in asked]
    runs = Runs(engine)
    for _, increment in runs.follow(runs.add(requests)):
        new = increment.logprobs or []
        outputs[increment.index] += zip(increment.token_ids, new, strict=True)
    return outputs


def test_requests_together_and_behind_cached_prefixes(
    engine: Engine, alone: list[Bits]
):
    assert run(engine, ASKED) == alone
    found = engine.scheduler.prefixes.num_cached_tokens
    assert run(engine, ASKED[::-1]) == alone[::-1]
    assert engine.scheduler.prefixes.num_cached_tokens > found


def test_chunks_and_what_was_put_back(model: Decoder, alone: list[Bits]):
    small = tiny_engine(
        model, max_num_seqs=2, num_pages=6, max_batched_tokens=16, steps_per_launch=2
    )
    assert run(small, ASKED) == alone
    assert small.scheduler.num_preemptions > 0
