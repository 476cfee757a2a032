"""A block's tiles, one after the other: scores, weights, weighted values.

Tokens are the rows of both GEMMs and query heads their columns, as in the CUDA
kernel: `scores[T, N] = keys[T, D] queries[N, D]^T` and `out[D, N] += values[T, D]^T
weights[T, N]`, where `N` is 8 for groups of up to 8. Queries as rows would be padded to
the 64 of Hopper's tensor core.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.kernels.decode_attention.pallas.ring import Ring, Span, clear_beyond
from fdjax.notation import Array

LOG2_E = math.log2(math.e)
LAYOUT = plgpu.Layout.WGMMA
COLUMNS = plgpu.Layout.WGMMA.reduce(0)


@dataclasses.dataclass(frozen=True)
class Partial:
    """Sums over some tokens; maxima and exponents are of base 2.

    Attributes:
        out: `[D, N]`, values times weights.
        total: `[N]`, the weights.
        highest: `[N]`, the largest score.
    """

    out: Array
    total: Array
    highest: Array


def spread(columns: Array, rows: int) -> Array:
    """`[N]` to `[rows, N]`."""
    return lax.broadcast_in_dim(columns, (rows, columns.shape[0]), (1,))


def full(shape: tuple[int, ...], value: float) -> Array:
    """A constant in the tensor core's layout, of one column each for a vector."""
    layout = LAYOUT if len(shape) == 2 else COLUMNS
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


class Unified:
    """Weights relative to a constant: FlashDecoding++Next, section III.

    Nothing depends on another tile, so nothing is rescaled and nothing is exchanged
    between warps; the largest score is only watched.
    """

    def __init__(self, phi: float) -> None:
        self._phi = phi * LOG2_E

    def start(self, tokens: int, columns: int) -> Array:
        """The largest scores so far, one for each element of a tile."""
        return full((tokens, columns), -math.inf)

    def weigh(self, scores: Array, highest: Array) -> tuple[Array, Array, None]:
        """Weights, largest scores so far, and no factor for earlier sums."""
        return jnp.exp2(scores - self._phi), jnp.maximum(highest, scores), None

    def end(self, highest: Array) -> Array:
        """The largest score of each column."""
        return jnp.max(highest, axis=0)


class Running:
    """Weights relative to the largest score so far: FlashDecoding."""

    def start(self, tokens: int, columns: int) -> Array:
        """The largest scores so far, one a column."""
        del tokens
        return full((columns,), -math.inf)

    def weigh(self, scores: Array, highest: Array) -> tuple[Array, Array, Array]:
        """Weights, largest scores so far, and the factor for earlier sums."""
        raised = jnp.maximum(highest, jnp.max(scores, axis=0))
        base = finite(raised)
        weights = jnp.exp2(scores - spread(base, scores.shape[0]))
        return weights, raised, jnp.exp2(highest - base)

    def end(self, highest: Array) -> Array:
        """The largest score of each column."""
        return highest


type Scheme = Unified | Running


def finite(highest: Array) -> Array:
    """Zero where no token was seen: -inf minus -inf is NaN."""
    return jnp.where(highest > -jnp.inf, highest, jnp.zeros_like(highest))


def attend(
    problem: Problem,
    scheme: Scheme,
    ring: Ring,
    work: Span,
    queries: Any,
    weights: Any,
    ready: Callable[[], tuple[Array, ...]],
) -> Partial:
    """Attends from the block's queries to the tokens of `work`.

    Args:
        problem: the call.
        scheme: what the weights are relative to.
        ring: empty; it is empty again at the end.
        work: the tokens.
        queries: `[N, D]` in shared memory.
        weights: `[2, N, T]` in shared memory. Two, so that a warp can write the next
            ones while another's wgmma still reads these.
        ready: called when the copies are under way: waits for the queries, and returns
            the score function's parameters, `[N]` each.
    """
    tokens, columns = problem.config.tile_tokens, problem.columns
    dim = problem.head_dim
    ids = ring.start(work)
    parameters = ready()
    place = plgpu.broadcasted_iota(jnp.int32, (tokens, columns), 0, layout=LAYOUT)

    def step(tile: Array, carry: Any) -> Any:
        out, total, highest, ids = carry
        slot, side = ring.slot(tile), lax.rem(tile, jnp.int32(2))
        start = (work.first_page + tile * problem.tile_pages) * problem.page_size

        plgpu.barrier_wait(ring.keys_here.at[slot])
        scores = multiply(
            ring.keys.at[slot], queries.transpose((1, 0)), (tokens, columns)
        )
        scores = masked(problem, scores, place + start, work, parameters)
        weight, highest, factor = scheme.weigh(scores, highest)
        # What is rounded is also summed, so that the weights of a row add up to one.
        weight = weight.astype(problem.dtype)
        if factor is not None:
            total = total * spread(factor, tokens)
            out = out * spread(factor, dim)
        total = total + weight.astype(jnp.float32)

        weights.at[side].transpose((1, 0))[...] = weight
        # Also a barrier of the warps: behind it, all have read the tile before.
        plgpu.commit_smem()
        ring.refill(work, tile, ids)
        ids = ring.ids(work, tile + problem.config.stages)

        plgpu.barrier_wait(ring.values_here.at[slot])
        clear_beyond(ring.values.at[slot], start, work, (tokens, dim))
        values = ring.values.at[slot].transpose((1, 0))
        transposed = weights.at[side].transpose((1, 0))
        out = out + multiply(values, transposed, (dim, columns))
        return out, total, highest, ids

    out, total, highest, _ = lax.fori_loop(
        0,
        work.tiles,
        step,
        (
            full((dim, columns), 0.0),
            full((tokens, columns), 0.0),
            scheme.start(tokens, columns),
            ids,
        ),
    )
    return Partial(out, jnp.sum(total, axis=0), scheme.end(highest))


def multiply(a: Any, b: Any, shape: tuple[int, int]) -> Array:
    """`a @ b` of two operands in shared memory, in float32."""

    def accumulate(accumulator: Any) -> Array:
        plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


def masked(
    problem: Problem,
    raw: Array,
    positions: Array,
    work: Span,
    parameters: tuple[Array, ...],
) -> Array:
    """Scores in base 2; -inf where a key is not seen, whatever it holds."""
    if problem.score is None:
        scores = raw * (problem.scale * LOG2_E)
    else:
        wide = tuple(spread(p, raw.shape[0]) for p in parameters)
        scores = problem.score(raw * problem.scale, work.length - 1, positions, *wide)
        scores = scores * LOG2_E
    seen = positions < work.length
    if problem.window is not None:
        seen = seen & (positions >= work.lowest)
    return jnp.where(seen, scores, jnp.full_like(scores, -jnp.inf))
