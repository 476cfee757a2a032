"""The arguments of `matmul` and `gated_matmul`."""

import jax

from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@pytree
class Matmul:
    """One call of `matmul`, or of `gated_matmul`: the same kernels serve both.

    Attributes:
        x: activations.
        weight: `[N, K]`; if gated, gate rows, then as many up rows: `N = 2 F`.
        bias: added to every row of `x weight^T`, or `None`.
        residual: added to the sums, before they are rounded, or `None`; always `None`
            if gated.
        activation: of the gate, a name of `fdjax.kernels.activations`; `None`: not
            gated.
        out_dtype: type of the result; that of `x` if gated.
    """

    x: Float[Array, "M K"]
    weight: Weight
    bias: Float[Array, " N"] | None
    residual: Float[Array, "M N"] | None
    activation: str | None = static()
    out_dtype: jax.typing.DTypeLike = static()

    @property
    def gated(self) -> bool:
        """Whether the weight's rows are a gate's and as many `up` rows."""
        return self.activation is not None
