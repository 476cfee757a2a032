"""B: `gated_matmul` on Hopper's tensor cores, M up to 64."""

from fdjax.kernels.matmul import call
from fdjax.kernels.matmul.config import MAX_FLAT_M, flat_config
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
        config=flat_config(x.shape[0], *weight.shape, gated=True),
    )


def refuse(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    *,
    activation: str,
) -> str | None:
    """Why B cannot serve this call, or `None`."""
    if activation not in call.ACTIVATIONS:
        return f"activation {activation!r}; it takes {', '.join(call.ACTIVATIONS)}"
    return (
        call.refuse(x, weight, bias, out_dtype=x.dtype, max_m=MAX_FLAT_M, multiple=16)
        or call.refuse_below_sm90()
    )


IMPL = Impl(run, refuse)
