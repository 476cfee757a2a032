"""Which kernel serves each GEMM of a chain of kernels, and its launch config."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels.layer_program import table
from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.matmul import gemm, persistent
from fdjax.kernels.matmul.params import (
    FlatConfig,
    GemvConfig,
    LibraryConfig,
    MatmulConfig,
)


def choose(
    m: int,
    n: int,
    k: int,
    *,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    gate: str | None = None,
    bias: bool = False,
    beside_attention: bool = False,
) -> MatmulConfig:
    """The kernel and its launch config for one GEMM.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        dtype: of the weight's elements.
        gate: an activation, where the weight's rows are a gate's and as many `up` rows.
        bias: whether one is added.
        beside_attention: attention of rows that decode is what follows.
    """
    rows = table.PART.find()
    if m <= rows.gemv_up_to:
        # gemv's many small blocks and flat's few large ones leave each other little
        # room: of Llama-3-8B, all by gemv takes 3,720 us, all by flat 4,016, and each
        # GEMM by what is fastest for it alone 4,262.
        return GemvConfig()
    if m > rows.gemm_up_to:
        if gate is not None:
            tiles = persistent.choose(m, n, activation=gate, bias=bias)
            filled = persistent.efficiency(tiles, m, n, gated=True)
            if 1000 * filled >= rows.persistent_from:
                return tiles
        return LibraryConfig(rows.candidates.get((m, n, k), 0))
    if m > rows.flat_up_to:
        return gemm.choose(n, k)
    gated = gate is not None
    config = matmul_config.flat_config(m, n, k, gated=gated, dtype=dtype)
    if beside_attention and m <= rows.beside_rows:
        return _within(rows.beside_bytes, m, config)
    return config


def source(
    m: int,
    shapes: tuple[tuple[int, int], ...],
    *,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> str:
    """What chose the kernels of the GEMMs and their launch configs, in words.

    Args:
        m: rows of x.
        shapes: of the weights.
        dtype: of their elements.
    """
    rows = table.PART.find()
    if m <= rows.gemv_up_to:
        few = "one row" if rows.gemv_up_to == 1 else f"up to {rows.gemv_up_to} rows"
        return f"GEMMs by gemv, for {few}"
    if m > rows.gemm_up_to:
        return (
            f"GEMMs by cuBLASLt, for more than {rows.gemm_up_to} rows, or by "
            "persistent, where they have a gate and their tiles fill the SMs"
        )
    if m > rows.flat_up_to:
        return f"GEMMs by gemm, for more than {rows.flat_up_to} rows"
    names = dict.fromkeys(
        matmul_config.source_of(*shape, dtype=dtype) for shape in shapes
    )
    return f"GEMMs by {', '.join(names)}"


def _within(num_bytes: int, m: int, config: FlatConfig) -> FlatConfig:
    """With a ring no larger than leaves attention's blocks room."""
    while config.stages > 1 and config.shared_bytes(m) > num_bytes:
        config = dataclasses.replace(config, stages=config.stages - 1)
    return config
