"""`Weight`: the matrix of a linear map, or a table of vectors, in the format it has."""

import jax.numpy as jnp

from fdjax.notation import Array, Float
from fdjax.pytree import pytree


@pytree
class Dense:
    """A matrix that is held value by value.

    Attributes:
        values: its elements.
    """

    values: Float[Array, "N K"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, K)` of the matrix."""
        n, k = self.values.shape
        return n, k

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the matrix's elements, and of the activations that it takes."""
        return self.values.dtype


type Weight = Dense
"""A matrix in one of the formats that there are.

It travels whole from the module that owns it to the implementation that reads it, into
C++ (`WeightView` of ffi/include/fdjax/weight.h): a format is one more case here and
there, and a matter of the implementations that take it.
"""

FORMATS: tuple[type[Weight], ...] = (Dense,)
"""Every format, in the order of `WeightView`."""


def format_of(weight: Weight) -> int:
    """Which format a weight has, as handlers are told it: its place in `FORMATS`."""
    return FORMATS.index(type(weight))
