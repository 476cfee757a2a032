"""`gated_activation` and the activation functions against their formulas."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.activations import activation
from fdjax.kernels.gated_activation import gated_activation
from tests.support.numerics import assert_close

FORMULAS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: (
        x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_an_activation_is_its_formula(name: str):
    x = np.linspace(-6, 6, 101)
    expected = np.vectorize(FORMULAS[name])(x)
    assert_close(activation(name)(jnp.asarray(x, jnp.float32)), expected, reduction=1)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gate_comes_first(name: str, dtype: jnp.dtype):
    drawn = np.random.default_rng(0).normal(size=(3, 2 * 37))
    gate_up = jnp.asarray(drawn, dtype)
    gate, up = np.split(np.asarray(gate_up).astype(np.float64), 2, axis=-1)
    expected = np.vectorize(FORMULAS[name])(gate) * up
    assert_close(gated_activation(gate_up, activation=name), expected, reduction=1)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="7, not twice F"):
        gated_activation(jnp.zeros((1, 7)), activation="silu")
    with pytest.raises(ValueError, match=r"'swish'.*silu"):
        gated_activation(jnp.zeros((1, 8)), activation="swish")
