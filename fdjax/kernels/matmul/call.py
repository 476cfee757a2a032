"""The FFI call behind the flat products, gated and not, and what it takes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import get_abstract_mesh

from fdjax.kernels import ffi
from fdjax.kernels.matmul.config import FlatConfig
from fdjax.notation import Array, Float

NAME = "matmul"
DTYPES = (jnp.bfloat16, jnp.float16)
# By their place in the enum Activation of params.h.
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")

GEMV = FlatConfig(tiles=0, boxes=0, tile_rows=0, splits=0, stages=0)


def product(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None,
    residual: Float[Array, "M N"] | None,
    *,
    activation: str | None,
    out_dtype: jax.typing.DTypeLike,
    config: FlatConfig,
) -> Float[Array, "M columns"]:
    """Calls the handler; `GEMV` in the place of a configuration asks for A.

    Args:
        x: activations.
        weight: the weight; gate rows, then up rows, if gated.
        bias: added to the product.
        residual: added to the product; none if gated.
        activation: of the gate; `None`: the product itself is the result.
        out_dtype: type of the result: x's, or float32.
        config: how B cuts the product up.
    """
    columns = weight.shape[0] // (1 if activation is None else 2)
    call = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((x.shape[0], columns), out_dtype),
        vmap_method="sequential",
    )
    rest = [operand for operand in (bias, residual) if operand is not None]
    return call(
        x,
        weight,
        *rest,
        gated=np.bool_(activation is not None),
        has_bias=np.bool_(bias is not None),
        has_residual=np.bool_(residual is not None),
        activation=np.int64(0 if activation is None else ACTIVATIONS.index(activation)),
        tiles=np.int64(config.tiles),
        boxes=np.int64(config.boxes),
        tile_rows=np.int64(config.tile_rows),
        splits=np.int64(config.splits),
        stages=np.int64(config.stages),
    )


def refuse(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *others: Array | None,
    out_dtype: jax.typing.DTypeLike,
    max_m: int,
    multiple: int = 8,
) -> str | None:
    """Why the handler cannot serve a product, or `None`.

    Args:
        x: activations.
        weight: the weight.
        others: bias and residual.
        out_dtype: type of the result.
        max_m: the largest M.
        multiple: what N must be a multiple of.
    """
    if reason := ffi.refuse(NAME, platform="gpu"):
        return reason
    (m, k), n = x.shape, weight.shape[0]
    if not 1 <= m <= max_m:
        return f"M is {m}; it takes 1 to {max_m}"
    if n % multiple or k % 8:
        return f"[N, K] is [{n}, {k}]; it takes multiples of [{multiple}, 8]"
    dtypes = {operand.dtype for operand in (x, weight, *others) if operand is not None}
    if x.dtype not in DTYPES or len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        return f"the operands are {names}; it takes all bfloat16 or all float16"
    if jnp.dtype(out_dtype) not in (x.dtype, jnp.float32):
        return f"the result is {jnp.dtype(out_dtype)}; it takes {x.dtype} and float32"
    return None


def refuse_below_sm90() -> str | None:
    """Why wgmma and TMA cannot run on the device traced for, or `None`."""
    described = get_abstract_mesh().abstract_device
    if described is not None:
        # Only the name is known; these are all of compute capability 9.0.
        hopper = any(name in described.device_kind for name in ("H100", "H200", "H800"))
        return None if hopper else f"needs sm_90, the target is {described.device_kind}"
    capability = str(getattr(jax.devices()[0], "compute_capability", "unknown"))
    if capability != "9.0":
        return f"needs sm_90, the device's compute capability is {capability}"
    return None
