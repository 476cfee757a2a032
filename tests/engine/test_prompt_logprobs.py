"""Log-probabilities of prompts: those of the pure function, however it is computed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import SamplingParams
from fdjax.engine import kv_calls
from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment, Logprob
from fdjax.engine.runs import Runs
from fdjax.generate import steps
from tests.support.engines import GREEDY, PROMPTS, layout_of, run, tiny_engine
from tests.support.engines import tiny_model as model
from tests.support.numerics import assert_close

SCORED = dataclasses.replace(GREEDY, max_tokens=6, prompt_logprobs=3)
REDUCTION = 131  # the vocabulary

type Scores = list[Logprob | None]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_calls, "SCORED_TOKENS", 4)


def followed(engine: Engine, prompts: Any, params: SamplingParams) -> list[Increment]:
    requests = [engine.request(i, p, params) for i, p in enumerate(prompts)]
    runs = Runs(engine)
    return [increment for _, increment in runs.follow(runs.add(requests))]


def scores_of(engine: Engine, prompts: Any, params: SamplingParams) -> list[Scores]:
    """Those of each prompt, which come once."""
    found: dict[int, Scores] = {}
    for increment in followed(engine, prompts, params):
        if increment.prompt_logprobs is not None:
            assert increment.index not in found
            found[increment.index] = increment.prompt_logprobs
    return [found[index] for index in range(len(prompts))]


def expected(prompt: list[int]) -> jax.Array:
    """Log-probabilities `[S, V]` after each token."""
    layout = layout_of(model(), num_pages=4, page_size=8)
    tokens = jnp.asarray([prompt], jnp.int32)
    lengths = jnp.asarray([len(prompt)], jnp.int32)
    table = jnp.arange(4, dtype=jnp.int32)[None]
    logits, _ = steps.score(model(), layout.allocate(), tokens, lengths, table)
    return jax.nn.log_softmax(logits[0])


def test_scores_are_those_of_the_pure_function(engine: Engine):
    for prompt, scores in zip(PROMPTS, scores_of(engine, PROMPTS, SCORED), strict=True):
        assert scores[0] is None
        assert len(scores) == len(prompt)
        wanted = expected(prompt)
        for place, score in enumerate(scores[1:]):
            assert score is not None
            row = np.asarray(wanted[place])
            assert_close(
                jnp.float32(score.logprob), row[prompt[place + 1]], reduction=REDUCTION
            )
            assert list(score.top) == np.argsort(-row, stable=True)[:3].tolist()
            assert_close(
                jnp.asarray(list(score.top.values()), jnp.float32),
                np.sort(row)[::-1][:3],
                reduction=REDUCTION,
            )


def test_they_change_no_token(engine: Engine):
    plain = dataclasses.replace(SCORED, prompt_logprobs=None)
    assert run(engine, PROMPTS, SCORED) == run(engine, PROMPTS, plain)
    mixed = run(engine, PROMPTS, [plain, SCORED, plain])
    assert mixed == run(engine, PROMPTS, plain)


def test_a_cached_prompt_is_scored_whole(engine: Engine):
    prompt = [list(range(1, 25))]
    first = scores_of(engine, prompt, SCORED)
    again = scores_of(engine, prompt, SCORED)
    assert len(again[0]) == 24
    assert again == first


def test_chunks_of_a_prompt_and_preemption_change_nothing(engine: Engine):
    prompts = [[7 + i, *range(1, 18)] for i in range(3)]
    wanted = scores_of(engine, prompts, SCORED)
    crowded = tiny_engine(num_pages=7, max_batched_tokens=5, steps_per_launch=1)
    params = dataclasses.replace(SCORED, max_tokens=12)
    found = scores_of(crowded, prompts, params)
    assert crowded.scheduler.num_preemptions > 0
    for one, other in zip(wanted, found, strict=True):
        for a, b in zip(one[1:], other[1:], strict=True):
            assert a is not None and b is not None
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_samples_of_a_prompt_score_it_once(engine: Engine):
    samples = dataclasses.replace(SCORED, n=3, temperature=1.0, seed=1).samples()
    assert [one.prompt_logprobs for one in samples] == [3, None, None]
    assert [one.seed for one in samples] == [1, 2, 3]
