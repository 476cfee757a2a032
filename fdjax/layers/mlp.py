"""The feed-forward part of a layer, gated or not."""

import jax
from flax import nnx

from fdjax.config import Mlp
from fdjax.kernels.activations import activation
from fdjax.kernels.gated_activation import gated_activation
from fdjax.layers.linear import Linear
from fdjax.notation import Array, Float


class FeedForward(nnx.Module):
    """Up product, activation, down product; gate and up are one fused product.

    Args:
        spec: sizes and activation.
        hidden_size: `E`.
        dtype: type of the parameters.
    """

    def __init__(
        self, spec: Mlp, hidden_size: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        self.spec = spec
        up_size = 2 * spec.size if spec.gated else spec.size
        self.up = Linear(hidden_size, up_size, bias=spec.bias, dtype=dtype)
        self.down = Linear(spec.size, hidden_size, bias=spec.bias, dtype=dtype)

    def __call__(self, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
        """Applies the part to every token."""
        up = self.up(x)
        if self.spec.gated:
            return self.down(gated_activation(up, activation=self.spec.activation))
        return self.down(activation(self.spec.activation)(up))
