"""RMS and layer normalisation as one module."""

import jax
from flax import nnx

from fdjax.config import Norm
from fdjax.kernels.layer_norm import layer_norm
from fdjax.kernels.rms_norm import rms_norm
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
        self.bias = declare(size, dtype=dtype) if spec.kind == "layer" else None

    def __call__(self, x: Float[Array, "*T E"]) -> Float[Array, "*T E"]:
        """Normalises every token."""
        epsilon = self.spec.epsilon
        if self.bias is not None:
            return layer_norm(x, self.scale[...], self.bias[...], epsilon=epsilon)
        offset = self.spec.scale_offset
        return rms_norm(x, self.scale[...], epsilon=epsilon, scale_offset=offset)
