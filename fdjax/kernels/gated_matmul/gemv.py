"""A: `gated_matmul` on CUDA cores, for the smallest M."""

from fdjax.kernels.matmul import call
from fdjax.kernels.matmul.config import MAX_GEMV_M
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    *,
    activation: str,
) -> Float[Array, "M F"]:
    """See `fdjax.kernels.gated_matmul.gated_matmul`."""
    return call.product(
        x,
        weight,
        bias,
        None,
        activation=activation,
        out_dtype=x.dtype,
        config=call.GEMV,
    )


def refuse(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    *,
    activation: str,
) -> str | None:
    """Why A cannot serve this call, or `None`."""
    if activation not in call.ACTIVATIONS:
        return f"activation {activation!r}; it takes {', '.join(call.ACTIVATIONS)}"
    return call.refuse(
        x, weight, bias, out_dtype=x.dtype, max_m=MAX_GEMV_M, multiple=16
    )


IMPL = Impl(run, refuse)
