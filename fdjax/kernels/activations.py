"""The activation functions of feed-forward parts, by name."""

from collections.abc import Callable
from functools import partial

import jax

# Handlers know them by their place here, that of the enum Activation of params.h.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function called `name`.

    Raises:
        ValueError: no activation of that name.
    """
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"no activation {name!r}; there are {known}")
    return ACTIVATIONS[name]


def place(name: str) -> int:
    """What handlers call the function called `name`."""
    return list(ACTIVATIONS).index(name)
