"""The sum of what the splits of a row left."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.decode_attention.pallas import attend as inner
from fdjax.kernels.decode_attention.pallas.attend import Partial
from fdjax.kernels.decode_attention.pallas.block import scheme_of
from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.notation import Array


def added(problem: Problem, outs: Any, sums: Any) -> Partial:
    """The sum of the splits' results: a plain one if all have the same base.

    Args:
        problem: the call.
        outs: `[splits, D, N]` in global memory.
        sums: `[splits, 2, N]` in shared memory.
    """
    splits, dim = problem.config.splits, problem.head_dim
    running = isinstance(scheme_of(problem), inner.Running)
    column = functools.partial(plgpu.load, layout=inner.COLUMNS)
    highest = column(sums.at[0, 1])
    for split in range(1, splits):
        highest = jnp.maximum(highest, column(sums.at[split, 1]))
    base = inner.finite(highest)

    def add(first: Array | int, count: int, out: Array, total: Array) -> Any:
        # All of them are asked for before one is used. "Optimized" is about shared
        # memory; these loads are whole lines as they are.
        parts = [
            plgpu.load(outs.at[first + i], layout=inner.LAYOUT, optimized=False)
            for i in range(count)
        ]
        for i, part in enumerate(parts):
            weight, share = column(sums.at[first + i, 0]), part
            if running:
                factor = jnp.exp2(column(sums.at[first + i, 1]) - base)
                weight, share = weight * factor, part * inner.spread(factor, dim)
            out, total = out + share, total + weight
        return out, total

    # As many at a time as 64 registers hold.
    chunk = max(1, 64 * 128 // (dim * problem.columns))
    zeros = inner.full((dim, problem.columns), 0.0), inner.full((problem.columns,), 0.0)
    out, total = lax.fori_loop(
        0, splits // chunk, lambda n, carry: add(n * chunk, chunk, *carry), zeros
    )
    rest = splits % chunk
    out, total = add(splits - rest, rest, out, total)
    return Partial(out, total, highest)
