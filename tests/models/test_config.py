"""What a `ModelConfig` asks of its layers, and what it says of them all."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from fdjax.errors import ConfigError
from tests.support.engines import tiny_model


def test_layers_of_one_kind_are_named_once_in_order():
    config = tiny_model().config
    (layer,) = config.kinds
    sliding = replace(layer, attention=replace(layer.attention, window=8))
    mixed = replace(config, layers=(sliding, layer, sliding))
    assert mixed.kinds == (sliding, layer)
    assert mixed.num_layers == 3


@pytest.mark.parametrize("field", ["num_heads", "num_kv_heads", "head_dim"])
def test_layers_share_a_kv_array(field: str):
    config = tiny_model().config
    (layer,) = config.kinds
    size: dict[str, Any] = {field: 1}
    other = replace(layer, attention=replace(layer.attention, **size))
    with pytest.raises(ConfigError, match=r"layer 1 has .*, and layer 0 .* of \d+"):
        replace(config, layers=(layer, other))


def test_a_model_has_a_layer():
    with pytest.raises(ConfigError, match="has no layers; give at least one"):
        replace(tiny_model().config, layers=())


def test_a_kv_array_has_the_shape_of_the_model():
    config = tiny_model("mistral").config
    layout = config.kv_layout(num_pages=3, page_size=4, dtype=jnp.float16)
    heads = config.num_kv_heads, config.head_dim
    assert layout.shape == (3, config.num_layers, 2, 4, *heads)
