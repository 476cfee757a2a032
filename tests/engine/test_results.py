"""Results are read when somebody asks; what reads them earlier is seen by the tests."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.engine import pipeline
from fdjax.engine.engine import Engine
from fdjax.generate.softmax_counts import SoftmaxCounts
from tests.support.engines import PROMPTS, run
from tests.support.host_reads import no_host_reads

WAYS: dict[str, Callable[[Any], object]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "index": operator.index,
    "item": lambda array: array.item(),
    "tolist": lambda array: array.tolist(),
    "str": str,
    "asarray": np.asarray,
    "array": np.array,
    "ufunc": np.negative,
    "from_dlpack": np.from_dlpack,
    "memoryview": memoryview,
    "bytes": lambda array: array.tobytes(),
    "device_get": jax.device_get,
    "wait": jax.block_until_ready,
    "wait for several": lambda array: jax.block_until_ready([array, array]),
    "its own wait": lambda array: array.block_until_ready(),
}


@pytest.mark.cpu  # there numpy and JAX may share memory
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_the_host_is_overlooked(way: str):
    array = jnp.asarray(3)
    with no_host_reads(), pytest.raises(AssertionError, match="the host waits"):
        WAYS[way](array)
    WAYS[way](array)


@pytest.mark.parametrize("call", ["extend", "decode"])
def test_a_launch_that_waits_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str
):
    launch = getattr(engine.executor, call)

    def waiting(*work: Any) -> Any:
        launched = launch(*work)
        for one in launched if call == "extend" else [launched]:
            np.asarray(one.sampled.tokens)
        return launched

    monkeypatch.setattr(engine.executor, call, waiting)
    with no_host_reads(), pytest.raises(AssertionError, match="the host waits"):
        run(engine, PROMPTS)


def test_an_engine_that_is_not_ahead_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "LAUNCHES_AHEAD", 0)
    with no_host_reads(), pytest.raises(AssertionError, match="the step it is of"):
        run(engine, PROMPTS)


def test_counts_that_a_step_asks_for_are_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    counts = SoftmaxCounts(jnp.zeros(2, jnp.uint32), jnp.zeros((1, 2), jnp.uint32))
    monkeypatch.setattr(engine._pipeline, "_let_in", lambda: counts.read(num_heads=1))
    with no_host_reads(), pytest.raises(AssertionError, match="read within a step"):
        engine.step()
