"""B: `matmul` on Hopper's tensor cores, M up to 64 padded to 8, 16, 32 or 64."""

import jax

from fdjax.kernels.matmul import call
from fdjax.kernels.matmul.config import MAX_FLAT_M, flat_config
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float


def run(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    out_dtype: jax.typing.DTypeLike,
) -> Float[Array, "M N"]:
    """See `fdjax.kernels.matmul.matmul`."""
    return call.product(
        x,
        weight,
        bias,
        residual,
        activation=None,
        out_dtype=out_dtype,
        config=flat_config(x.shape[0], *weight.shape, gated=False),
    )


def refuse(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    out_dtype: jax.typing.DTypeLike,
) -> str | None:
    """Why B cannot serve this call, or `None`."""
    return call.refuse(
        x, weight, bias, residual, out_dtype=out_dtype, max_m=MAX_FLAT_M
    ) or (call.refuse_below_sm90())


IMPL = Impl(run, refuse)
