"""The arguments of `layer_norm`."""

from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@pytree
class LayerNorm:
    """One call of `layer_norm`.

    Attributes:
        x: activations; the last axis is normalised.
        scale: one factor an element.
        bias: added an element.
        epsilon: added to the variance.
    """

    x: Float[Array, "*T E"]
    scale: Float[Array, " E"]
    bias: Float[Array, " E"]
    epsilon: float = static()
