"""Weights that change between requests, as those of a model in training do."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from fdjax.engine.engine import Engine
from fdjax.errors import ConfigError
from fdjax.models import Decoder, random_weights
from fdjax.models.weights import check_there
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine


def other_weights(seed: int = 1) -> Decoder:
    return random_weights(shallow_model().config, dtype=jnp.float32, seed=seed)


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(shallow_model())


def test_tokens_are_those_of_an_engine_with_these_weights(engine: Engine):
    """Without tracing, and with prompts whose prefixes the old weights have made."""
    engine.warm_up([GREEDY])
    before = run(engine, PROMPTS)
    for seed in (1, 2):
        model = other_weights(seed)
        expected = run(tiny_engine(model), PROMPTS)
        assert expected != before
        with jax.no_tracing(True):
            engine.update_weights(model)
            assert run(engine, PROMPTS) == expected
    engine.update_weights(shallow_model())
    assert run(engine, PROMPTS) == before


def test_weights_with_a_place_take_no_second_compilation():
    """What the first calls donate has their place from the beginning."""
    place = SingleDeviceSharding(jax.devices()[0])
    engine = tiny_engine(jax.device_put(shallow_model(), place))
    before = run(engine, PROMPTS)
    with jax.no_tracing(True):
        engine.update_weights(jax.device_put(other_weights(), place))
        after = run(engine, PROMPTS)
    assert before == run(tiny_engine(shallow_model()), PROMPTS)
    assert after == run(tiny_engine(other_weights()), PROMPTS)


def test_nothing_passes_through_the_host(engine: Engine):
    model = other_weights()
    with jax.transfer_guard("disallow"):
        engine.update_weights(model)


def test_not_while_a_request_is_there(engine: Engine):
    sequence = engine.add(engine.request(0, PROMPTS[1], GREEDY))
    with pytest.raises(ConfigError, match="between requests, and some are unfinished"):
        engine.update_weights(other_weights())
    engine.step()
    engine.park(sequence)
    engine.step()
    assert not engine.has_work
    with pytest.raises(ConfigError, match="unfinished"):
        engine.update_weights(other_weights())
    engine.abort(sequence)
    engine.update_weights(other_weights())


def test_weights_that_do_not_fit_are_refused(engine: Engine):
    config = shallow_model().config
    deeper = dataclasses.replace(config, layers=config.layers * 2)
    with pytest.raises(ConfigError, match="another configuration"):
        engine.update_weights(random_weights(deeper, dtype=jnp.float32, seed=0))

    def halved(array: Any) -> Any:
        return array.astype(jnp.bfloat16)

    before = run(engine, PROMPTS)
    with pytest.raises(ConfigError, match=r"is bfloat16\(.*and float32\("):
        engine.update_weights(jax.tree.map(halved, other_weights()))
    assert run(engine, PROMPTS) == before, "the weights are the old ones"


def test_weights_that_are_not_there_are_refused(engine: Engine):
    before = run(engine, PROMPTS)
    with pytest.raises(TypeError, match="the model is a NoneType; give a Decoder"):
        check_there(None)  # the engine's own argument is checked by its type, too
    gone = other_weights()
    jax.tree.leaves(gone)[-1].delete()
    with pytest.raises(ConfigError, match="is deleted, perhaps since"):
        engine.update_weights(gone)
    for leaf in (np.ones(3, np.float32), "text"):
        model = jax.tree.map(lambda _, leaf=leaf: leaf, other_weights())
        with pytest.raises(ConfigError, match=f"is a {type(leaf).__name__}; give arr"):
            engine.update_weights(model)
    assert run(engine, PROMPTS) == before, "the weights are the old ones"
