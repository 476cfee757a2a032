"""New weights where others lie."""

import jax
import numpy as np

from fdjax.notation import Array


def in_place_of(old: Array | jax.ShapeDtypeStruct, new: Array | np.ndarray) -> Array:
    """A weight where another one lies, or where it is if there has been none.

    An array that is put somewhere is no more what jit has seen, if it was there or
    nobody had chosen the place.
    """
    if isinstance(old, jax.ShapeDtypeStruct):
        return jax.numpy.asarray(new)
    if isinstance(new, np.ndarray):
        return jax.device_put(new, old.sharding if old.committed else None)
    return new if new.sharding == old.sharding else jax.device_put(new, old.sharding)
