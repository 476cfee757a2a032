"""The fused gate and up linear map of a feed-forward part, and its gate."""

from fdjax.kernels.activations import activation as named_activation
from fdjax.kernels.gated_matmul import cpu, reference
from fdjax.kernels.matmul import Matmul, flat, gemm, gemv, handler, persistent
from fdjax.kernels.op import Op
from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float

OP = Op(
    "gated_matmul",
    reference.gated_matmul,
    {
        "gemv": gemv.IMPL,
        "flat": flat.IMPL,
        "gemm": gemm.IMPL,
        "persistent": persistent.IMPL,
        "cpu": cpu.IMPL,
    },
    order=handler.order,
    source=handler.source,
)


def gated_matmul(
    x: Float[Array, "M K"],
    weight: Weight,
    bias: Float[Array, " N"] | None = None,
    *,
    activation: str,
) -> Float[Array, "M F"]:
    """Computes `activation(gate) * up` where `[gate, up] = x @ weight.T + bias`.

    Gate and up themselves are never written: a block computes both of the same columns.

    The arguments are fields of `fdjax.kernels.matmul.Matmul`.

    Raises:
        ValueError: shapes do not fit together, or the activation is unknown.
    """
    if x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"gated_matmul: x has {x.shape[1]} columns, weight {weight.shape[1]}; both "
            "are K"
        )
    if weight.shape[0] % 2:
        raise ValueError(
            f"gated_matmul: weight has {weight.shape[0]} rows, not twice F"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"gated_matmul: bias has shape {bias.shape}, weight {weight.shape[0]} rows"
        )
    named_activation(activation)
    return OP(Matmul(x, weight, bias, None, activation=activation, out_dtype=x.dtype))
