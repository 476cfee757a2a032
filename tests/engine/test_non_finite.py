"""A request whose logits are no numbers ends with an error, and no other does."""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import nnx

from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment
from fdjax.engine.runs import Runs
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.weight import Dense
from tests.support.engines import GREEDY, PROMPTS, run, tiny_engine, tiny_model

POISON = 50
DRAWN = SamplingParams(temperature=0.9, seed=1, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def poisoned() -> Engine:
    """The tiny model, and one token of which nothing finite comes."""
    model = nnx.clone(tiny_model())
    table = model.embed.weight.get_value().values
    model.embed.weight.set_value(Dense(table.at[POISON].set(jnp.nan)))
    return tiny_engine(model)


def test_it_ends_and_the_others_go_on(poisoned: Engine, engine: Engine):
    params = [GREEDY, DRAWN, dataclasses.replace(GREEDY, logprobs=2)]
    expected = run(engine, PROMPTS, params)
    bad = [[POISON], [4, POISON, 9]]
    wants = [dataclasses.replace(GREEDY, logprobs=3), DRAWN]
    requests = [
        poisoned.request(index, prompt, one)
        for index, (prompt, one) in enumerate(
            zip([*PROMPTS, *bad], [*params, *wants], strict=True)
        )
    ]
    runs = Runs(poisoned)
    seen: list[list[Increment]] = [[] for _ in requests]
    for _, increment in runs.follow(runs.add(requests)):
        seen[increment.index].append(increment)
    made = [[token for part in parts for token in part.token_ids] for parts in seen]
    assert made == [*expected, [], []]
    ends = [parts[-1].finish_reason for parts in seen]
    assert ends == [FinishReason.LENGTH] * 3 + [FinishReason.NON_FINITE] * 2
    assert seen[3][-1].logprobs == []
    assert not poisoned.has_work
    pool = poisoned.scheduler.pool
    assert pool.num_free == pool.num_pages


def test_one_that_comes_to_it_on_its_way(poisoned: Engine):
    """The tokens before are kept."""
    forced = dataclasses.replace(GREEDY, logit_bias={POISON: 100.0})
    (request,) = [poisoned.request(0, PROMPTS[0], forced)]
    runs = Runs(poisoned)
    parts = [increment for _, increment in runs.follow(runs.add([request]))]
    assert [token for part in parts for token in part.token_ids] == [POISON]
    assert parts[-1].finish_reason == FinishReason.NON_FINITE
