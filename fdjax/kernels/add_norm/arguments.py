"""The arguments of `add_norm`, and what it returns."""

from typing import NamedTuple

from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@pytree
class AddNorm:
    """One call of `add_norm`.

    Attributes:
        x: the residual stream; the last axis is normalised.
        delta: what is added to it first, or `None`.
        scale: one factor an element.
        bias: added an element, which makes it a layer norm; `None` for an RMS norm.
        epsilon: added to the variance, or to the mean square.
        scale_offset: added to scales in float32 (Gemma stores `scale - 1`).
        delta_scale: of an RMS norm of `delta` before it is added, with the same
            constants (a norm behind attention or a feed-forward part), or `None`.
    """

    x: Float[Array, "*T E"]
    delta: Float[Array, "*T E"] | None
    scale: Float[Array, " E"]
    bias: Float[Array, " E"] | None
    epsilon: float = static()
    scale_offset: float = static()
    delta_scale: Float[Array, " E"] | None = None


class Normalised(NamedTuple):
    """The result: the normalised sum, and the sum."""

    normal: Float[Array, "*T E"]
    x: Float[Array, "*T E"]
