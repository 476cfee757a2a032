"""A decoder's parameters by path."""

import jax
from flax import nnx

from fdjax.models import Decoder


def arrays_of(model: Decoder) -> dict[str, jax.Array]:
    """Every parameter's array, by path."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {
        ".".join(map(str, key)): jax.tree.leaves(variable.get_value())[0]
        for key, variable in state
    }
