"""The feed-forward part of a layer, gated or not."""

import jax
from flax import nnx

from fdjax.config import FeedForwardPart, GatedMlp
from fdjax.kernels.activations import activation
from fdjax.kernels.gated_activation import gated_activation
from fdjax.kernels.gated_matmul import OP as GATED_MATMUL
from fdjax.kernels.gated_matmul import gated_matmul
from fdjax.kernels.matmul import Matmul, matmul
from fdjax.kernels.weight import Weight
from fdjax.layers.linear import Linear
from fdjax.notation import Array, Float


class FeedForward(nnx.Module):
    """Up map, activation, down map; gate and up are one linear map.

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
        weight, bias = self.up.weight.get_value(), self.up.bias
        bias = None if bias is None else bias[...]
        return self.down(gated(x, weight, bias, self.spec.activation))


def gated(
    x: Float[Array, "T K"],
    weight: Weight,
    bias: Float[Array, " N"] | None,
    activation: str,
) -> Float[Array, "T F"]:
    """`gated_matmul` where one kernel serves; else the linear map, then the gate.

    The definition of the one kernel keeps gate and up in float32: for a prefill, twice
    the bytes.
    """
    call = Matmul(x, weight, bias, None, activation=activation, out_dtype=x.dtype)
    if GATED_MATMUL.fast(call):
        return gated_matmul(x, weight, bias, activation=activation)
    return gated_activation(matmul(x, weight, bias), activation=activation)
