"""A closed engine has nothing left on the device: its programs may be gone next."""

import contextlib
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import AsyncLLM, EngineDeadError, SamplingParams
from fdjax.engine.engine import Engine
from fdjax.engine.results import AwaitedTokens
from fdjax.models import random_weights
from tests.support.engines import shallow_model, tiny_engine
from tests.support.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

MATRIX = np.ones((500, 500), np.float32)
LONG = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@jax.jit
def late[T](tree: T, x: jax.Array) -> T:
    """The same arrays, some tenths of a second later."""
    x = jax.lax.fori_loop(0, 100, lambda _, x: jnp.sin(x @ x), x)
    return jax.tree.map(lambda leaf: leaf + (0 * x[0, 0]).astype(leaf.dtype), tree)


def made_slow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[AwaitedTokens]:
    """Has the tokens of steps that decode come late; the launches, as they are made."""
    launches, decode = list[AwaitedTokens](), engine.executor.decode

    def decode_late(*work: Any, **options: Any) -> AwaitedTokens:
        launch = decode(*work, **options)
        sampled = late(launch.sampled, MATRIX)
        launches.append(dataclasses.replace(launch, sampled=sampled))
        return launches[-1]

    monkeypatch.setattr(engine.executor, "decode", decode_late)
    return launches


async def test_it_waits_for_launches_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
):
    engine = tiny_engine(shallow_model(), steps_per_launch=1)
    launches = made_slow(engine, monkeypatch)
    llm = AsyncLLM(engine, None)
    async for _ in llm.generate([5, 1, 9], LONG):
        if len(launches) > 1:
            break  # the request is given up, in the midst of a launch
    assert llm.close()
    assert [launch.is_ready for launch in launches] == [True] * len(launches)
    assert launches[-1] in engine._pipeline._unread, "nobody has read it"


async def test_it_waits_for_the_kv_array():
    engine = tiny_engine(shallow_model())
    progress = engine.executor.progress
    array: Any = late(progress.kv.array, MATRIX)
    kv = progress.kv.with_array(array)
    engine.executor.progress = dataclasses.replace(progress, kv=kv)
    AsyncLLM(engine, None).close()
    assert array.is_ready()


async def test_an_engine_that_sleeps_closes_quietly(caplog: pytest.LogCaptureFixture):
    model = random_weights(shallow_model().config, dtype=jnp.float32, seed=0)
    engine = tiny_engine(model)
    engine.sleep(level=2)
    assert AsyncLLM(engine, None).close()
    assert not caplog.text


@pytest.mark.parametrize("fails_at", [None, 1])
async def test_what_fails_then_is_logged_where_nobody_was_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails_at: int | None,
):
    def fail() -> None:
        raise jax.errors.JaxRuntimeError("unspecified launch failure")

    engine = FakeEngine([7], fails_at=fails_at)
    monkeypatch.setattr(engine, "wait", fail)
    llm = AsyncLLM(engine, None)
    with contextlib.suppress(EngineDeadError):
        async for _ in llm.generate([5], LONG):
            pass
    with caplog.at_level(logging.ERROR):
        assert llm.close()
    assert ("failed in what was launched last" in caplog.text) == (fails_at is None)
