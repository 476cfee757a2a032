"""The arguments of `row_sum`."""

from fdjax.notation import Array, Float
from fdjax.pytree import pytree


@pytree
class RowSum:
    """One call of `row_sum`.

    Attributes:
        x: what is summed over the last axis, in float32.
    """

    x: Float[Array, "*T E"]
