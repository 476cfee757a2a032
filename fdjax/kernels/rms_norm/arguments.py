"""The arguments of `rms_norm`."""

from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@pytree
class RmsNorm:
    """One call of `rms_norm`.

    Attributes:
        x: activations; the last axis is normalised.
        scale: one factor an element.
        epsilon: added to the mean square.
        scale_offset: added to `scale` in float32 (Gemma stores `scale - 1`).
    """

    x: Float[Array, "*T E"]
    scale: Float[Array, " E"]
    epsilon: float = static()
    scale_offset: float = static()
