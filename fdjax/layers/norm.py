"""RMS and layer normalisation as one module."""

import jax
from flax import nnx

from fdjax.config import LayerNorm, Norm
from fdjax.kernels.add_norm import Normalised, add_norm
from fdjax.layers.parameter import declare
from fdjax.notation import Array, Float


class Normalisation(nnx.Module):
    """The normalisation that `spec` declares, over the last axis.

    Args:
        spec: kind and constants.
        size: elements of the normalised axis.
        dtype: type of the parameters.
    """

    def __init__(self, spec: Norm, size: int, *, dtype: jax.typing.DTypeLike) -> None:
        self.spec = spec
        self.scale = declare(size, dtype=dtype)
        self.bias = declare(size, dtype=dtype) if isinstance(spec, LayerNorm) else None

    def __call__(self, x: Float[Array, "*T E"]) -> Float[Array, "*T E"]:
        """Normalises every token."""
        return self.add(x, None).normal

    @property
    def scale_offset(self) -> float:
        """What is added to the stored scale."""
        return 0.0 if isinstance(self.spec, LayerNorm) else self.spec.scale_offset

    def add(
        self, x: Float[Array, "*T E"], delta: Float[Array, "*T E"] | None
    ) -> Normalised:
        """Normalises `x + delta`, and returns the sum too: see `add_norm`."""
        return add_norm(
            x,
            delta,
            self.scale[...],
            None if self.bias is None else self.bias[...],
            epsilon=self.spec.epsilon,
            scale_offset=self.scale_offset,
        )
