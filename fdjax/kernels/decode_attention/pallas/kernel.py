"""The kernels: a row's tokens by one block, or by several and a second kernel."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.decode_attention.pallas.block import (
    NUM_OPERANDS,
    Block,
    Operands,
    Room,
    scratch,
)
from fdjax.kernels.decode_attention.pallas.combine import added
from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.notation import Array

# Sums of 16 bit weights in float32 are exact enough; exp2 of the hardware has 22 bits.
PARAMS = plgpu.CompilerParams(
    approx_math=True,
    # The default puts a barrier of the warps around every store and copy: 10 a tile.
    # What is written by some warps and read by others is behind a `commit_smem`, which
    # contains one, and a slot is sent for again one such barrier after its last use.
    unsafe_no_auto_barriers=True,
)


def _whole(
    problem: Problem, operands: Operands, room: Room, out: Any, highest: Any
) -> None:
    """A block does all tokens of its row."""
    block = Block(problem, operands, room)
    partial = block.first_pass(jnp.int32(0), 1)
    block.publish(partial)
    block.write(block.corrected(partial), out, highest)


def _part(
    problem: Problem, operands: Operands, room: Room, outs: Any, sums: Any
) -> None:
    """A block does a split of its row's tokens, and leaves its sums."""
    block = Block(problem, operands, room)
    split = lax.axis_index("split")
    partial = block.first_pass(split, problem.config.splits)
    outs[block.row, block.head, split] = partial.out
    room["sums"][0] = partial.total
    room["sums"][1] = partial.highest
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(room["sums"], sums.at[block.row, block.head, split])
    plgpu.wait_smem_to_gmem(0)


def _combine(
    problem: Problem,
    operands: Operands,
    room: Room,
    outs: Any,
    sums: Any,
    out: Any,
    highest: Any,
) -> None:
    """Adds the sums of a row's splits."""
    block = Block(problem, operands, room)
    block.load_queries()
    plgpu.copy_gmem_to_smem(
        sums.at[block.row, block.head], room["all_sums"], room["sums_here"]
    )
    plgpu.barrier_wait(room["sums_here"])
    partial = added(problem, outs.at[block.row, block.head], room["all_sums"])
    block.wait_for_queries()
    block.publish(partial)
    block.write(block.corrected(partial), out, highest)


def _launch(
    problem: Problem,
    body: Any,
    out_type: tuple[jax.ShapeDtypeStruct, ...],
    room: dict[str, Any],
    interpret: Any,
    *,
    splits: int | None = None,
) -> Any:
    names, grid = ("row", "head"), (problem.rows, problem.num_kv_heads)
    if splits is not None:
        names, grid = (*names, "split"), (*grid, splits)

    def kernel(*refs: Any, **room: Any) -> None:
        body(problem, Operands(*refs[:NUM_OPERANDS]), room, *refs[NUM_OPERANDS:])

    kernel.__name__ = f"decode_attention{body.__name__}"
    return plgpu.kernel(
        kernel,
        out_type=out_type,
        scratch_types=room,
        grid=grid,
        grid_names=names,
        num_threads=1,
        thread_name="warpgroup",
        compiler_params=PARAMS,
        interpret=interpret,
    )


@functools.partial(jax.jit, static_argnames=("problem", "interpret"))
def run(
    problem: Problem, operands: tuple[Array, ...], *, interpret: Any = None
) -> tuple[Array, Array]:
    """Computes a call.

    Args:
        problem: its static part.
        operands: the arrays of `Operands`.
        interpret: `None` on a GPU, `InterpretGPUParams` on a CPU.

    Returns:
        The result, `[B * Hq, D]`, and each query head's largest score in the columns
        of its block, `[B, Hkv, N]`.
    """
    struct = jax.ShapeDtypeStruct
    rows, heads, columns = problem.rows, problem.num_kv_heads, problem.columns
    splits, dim = problem.config.splits, problem.head_dim
    final = (
        struct((rows * heads * problem.group, dim), problem.dtype),
        struct((rows, heads, columns), jnp.float32),
    )
    room = scratch(problem)
    if splits == 1:
        out, highest = _launch(problem, _whole, final, room, interpret)(*operands)
        return out, highest
    parts = (
        struct((rows, heads, splits, dim, columns), jnp.float32),
        struct((rows, heads, splits, 2, columns), jnp.float32),
    )
    first = _launch(problem, _part, parts, room, interpret, splits=splits)
    outs, sums = first(*operands)
    room["all_sums"] = plgpu.SMEM((splits, 2, columns), jnp.float32)
    room["sums_here"] = plgpu.Barrier()
    second = _launch(problem, _combine, final, room, interpret)
    out, highest = second(*operands, outs, sums)
    return out, highest
