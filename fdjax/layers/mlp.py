"""The feed-forward part of a layer, gated or not."""

import jax
from flax import nnx

from fdjax.config import FeedForwardPart, GatedMlp
from fdjax.kernels.activations import activation
from fdjax.kernels.gated_activation import gated_activation
from fdjax.kernels.gated_matmul import OP as GATED_MATMUL
from fdjax.kernels.gated_matmul import gated_matmul
from fdjax.kernels.matmul import Product
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
        self, spec: FeedForwardPart, hidden_size: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        self.spec = spec
        self.up = Linear(hidden_size, spec.up_size, bias=spec.bias, dtype=dtype)
        self.down = Linear(spec.size, hidden_size, bias=spec.bias, dtype=dtype)

    def __call__(self, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
        """Applies the part to every token."""
        if not isinstance(self.spec, GatedMlp):
            return self.down(activation(self.spec.activation)(self.up(x)))
        return self.down(self._gated(x))

    def _gated(self, x: Float[Array, "T E"]) -> Float[Array, "T F"]:
        """One kernel where there is one; else the product in its type, then the gate.

        The definition of the one kernel keeps the product in float32: for a prefill,
        twice the bytes.
        """
        weight, bias = self.up.weight[...], self.up.bias
        bias = None if bias is None else bias[...]
        name = self.spec.activation
        call = Product(x, weight, bias, None, activation=name, out_dtype=x.dtype)
        if GATED_MATMUL.fast(call):
            return gated_matmul(x, weight, bias, activation=name)
        return gated_activation(self.up(x), activation=name)
