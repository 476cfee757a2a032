"""A linear map with its weight stored `[N, K]`."""

import jax
from flax import nnx

from fdjax.kernels.matmul import matmul
from fdjax.layers.parameter import declare, declare_weight
from fdjax.notation import Array, Float


class Linear(nnx.Module):
    """`x @ weight.T + bias`.

    Args:
        in_size: `K`.
        out_size: `N`.
        bias: whether there is one.
        dtype: type of the parameters.
    """

    def __init__(
        self, in_size: int, out_size: int, *, bias: bool, dtype: jax.typing.DTypeLike
    ) -> None:
        self.weight = declare_weight(out_size, in_size, dtype=dtype)
        self.bias = declare(out_size, dtype=dtype) if bias else None

    def __call__(self, x: Float[Array, "T K"]) -> Float[Array, "T N"]:
        """Applies the map to every token."""
        bias = None if self.bias is None else self.bias[...]
        return matmul(x, self.weight.get_value(), bias)
