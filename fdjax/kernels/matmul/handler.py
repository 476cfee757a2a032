"""The FFI call behind the GPU's kernels, gated and not, and what it takes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.activations import ACTIVATIONS, place
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.config import choose, source_of
from fdjax.kernels.matmul.params import (
    GATED_UNIT,
    NAME,
    UNIT,
    MatmulConfig,
    config_numbers,
)
from fdjax.kernels.weight import format_of
from fdjax.notation import Array, Float

DTYPES = (jnp.bfloat16, jnp.float16)


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the GPU's handler, besides the launch config.

    Attributes:
        gated: the weight's rows are a gate's and as many `up` rows.
        activation: the gate's, by its place among `fdjax.kernels.activations`.
        format: of the weight, by its place among `fdjax.kernels.weight.FORMATS`.
    """

    gated: bool
    activation: int
    format: int


def run(call: Matmul, config: MatmulConfig) -> Float[Array, "M columns"]:
    """The handler's result.

    Args:
        call: the GEMM, gated or not.
        config: which kernel, and its launch config.
    """
    activation = 0 if call.activation is None else place(call.activation)
    columns = call.weight.shape[0] // (2 if call.gated else 1)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((call.x.shape[0], columns), call.out_dtype),
        vmap_method="sequential",
    )
    return handler(
        call.x,
        ffi.or_empty(call.bias, 0, dtype=call.x.dtype),
        ffi.or_empty(call.residual, 0, columns, dtype=call.x.dtype),
        *jax.tree.leaves(call.weight),
        attributes=ffi.attributes(
            Attributes(call.gated, activation, format_of(call.weight))
        ),
        launch_config=np.array(config_numbers(config), np.int64),
    )


def order(call: Matmul) -> tuple[str, ...]:
    """The implementations by the inflection points of `[N, K]`.

    Logits are by the library, where neither `gemv` nor `flat` is faster.
    """
    chosen = choose(call.x.shape[0], *call.weight.shape, dtype=call.weight.dtype)
    makes_logits = (
        jnp.dtype(call.out_dtype) != call.x.dtype
        and call.bias is None
        and _refuse_arguments(call, call.x.shape[0]) is None
    )
    return ("library",) if makes_logits and chosen == ("reference",) else chosen


def source(call: Matmul) -> str:
    """Where those inflection points come from, in words."""
    return source_of(*call.weight.shape, dtype=call.weight.dtype)


def refuse(call: Matmul, *, max_m: int) -> str | None:
    """Why the handler cannot serve a GEMM of `max_m` rows at most, or `None`."""
    return ffi.refuse(NAME, platform="gpu") or _refuse_arguments(call, max_m)


def refuse_wide_results(call: Matmul) -> str | None:
    """Why a kernel that writes 16 bits cannot serve a GEMM, or `None`."""
    out = jnp.dtype(call.out_dtype)
    return None if out == call.x.dtype else f"the result is {out}; it writes 16 bits"


def _refuse_arguments(call: Matmul, max_m: int) -> str | None:
    (m, k), n = call.x.shape, call.weight.shape[0]
    multiple = GATED_UNIT if call.gated else UNIT  # whole tiles of both halves
    if call.activation not in (None, *ACTIVATIONS):
        return f"activation {call.activation!r}; it takes {', '.join(ACTIVATIONS)}"
    if not 1 <= m <= max_m:
        return f"M is {m}; it takes 1 to {max_m}"
    if n % multiple or k % UNIT:
        return f"[N, K] is [{n}, {k}]; it takes multiples of [{multiple}, {UNIT}]"
    x, out = call.x.dtype, jnp.dtype(call.out_dtype)
    dtypes = {operand.dtype for operand in jax.tree.leaves(call)}
    if x not in DTYPES or len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        return f"the operands are {names}; it takes all bfloat16 or all float16"
    if out not in (x, jnp.float32):
        return f"the result is {out}; it takes {x} and float32"
    return None
