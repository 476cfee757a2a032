"""`LLM.sleep` and `wake_up`: memory goes and comes, and the tokens stay the same."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import LLM, ConfigError, RequestError, SamplingParams
from fdjax.models import random_weights

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def sleeper() -> LLM:
    """One whose memory nobody else uses."""
    return LLM(max_model_len=64, max_num_seqs=2, enable_prefix_caching=True)


def live_bytes() -> int:
    gc.collect()  # what other tests have left must not go in between
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("level", [1, 2])
def test_memory_goes_and_comes_back(sleeper: LLM, level: int):
    tokens = sleeper.generate(STORY, GREEDY)[0].token_ids
    plan = sleeper.engine.plan
    before = live_bytes()
    sleeper.sleep(level)
    assert sleeper.is_sleeping
    freed = before - live_bytes()
    # Weights as they lie on the device may be fewer bytes than planned, never none.
    assert freed >= plan.kv_bytes + 0.9 * plan.weight_bytes
    sleeper.wake_up()
    assert not sleeper.is_sleeping
    assert live_bytes() == before
    with jax.no_tracing(True):
        assert sleeper.generate(STORY, GREEDY)[0].token_ids == tokens


def test_who_sleeps_serves_nobody_and_says_what_to_do(sleeper: LLM):
    sleeper.sleep()
    message = r"the model sleeps, and its kv_cache and weights .* call wake_up\(\)"
    calls: list[Any] = [sleeper.generate, sleeper.stream, sleeper.embed]
    for call in calls:
        with pytest.raises(RequestError, match=message):
            call(STORY)
    with pytest.raises(RequestError, match=message):
        sleeper.warm_up([GREEDY])
    sleeper.sleep(2)  # deeper: the host's copy goes too
    assert sleeper.engine.sleeping.needs_weights
    sleeper.wake_up(["kv_cache"])
    with pytest.raises(RequestError, match="its weights are not"):
        sleeper.generate(STORY, GREEDY)
    sleeper.wake_up()
    assert sleeper.generate(STORY, GREEDY)[0].text


def test_other_weights_while_it_sleeps(sleeper: LLM):
    """As a training loop does between two rounds."""
    tokens = sleeper.generate(STORY, GREEDY)[0].token_ids
    others = random_weights(sleeper.config, dtype=jnp.float32, seed=7)
    sleeper.sleep(2)
    sleeper.engine.update_weights(others)
    assert sleeper.is_sleeping
    sleeper.wake_up(["kv_cache"])
    changed = sleeper.generate(STORY, GREEDY)[0].token_ids
    assert changed != tokens
    sleeper.sleep(2)
    sleeper.wake_up()
    assert sleeper.generate(STORY, GREEDY)[0].token_ids == tokens, "those of the files"


def test_not_while_requests_are_under_way(sleeper: LLM):
    chunks = sleeper.stream(STORY, GREEDY)
    next(chunks)
    with pytest.raises(ConfigError, match="sleeps between requests, and some are"):
        sleeper.sleep()
    assert "".join(chunk.text or "" for chunk in chunks)
    assert not sleeper.is_sleeping


@pytest.mark.parametrize("level", [0, 3, True])
def test_other_levels(sleeper: LLM, level: Any):
    with pytest.raises(ConfigError, match="use 1 or 2"):
        sleeper.sleep(level)
    with pytest.raises(ConfigError, match="tags has 'kv'; use 'weights' and 'kv_c"):
        sleeper.wake_up(["kv"])  # pyright: ignore[reportArgumentType]  (refused)
    sleeper.wake_up()
    assert not sleeper.is_sleeping
