"""One block of threads: what it holds, and what it does one after the other."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.decode_attention.pallas import attend as inner
from fdjax.kernels.decode_attention.pallas import ring as pages
from fdjax.kernels.decode_attention.pallas.attend import LOG2_E, Partial, Scheme
from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.notation import Array

LN_2 = 1.0 / LOG2_E

type Room = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Operands:
    """A call's arrays in global memory.

    Attributes:
        queries: `[B * Hq, D]`.
        kv: `[P * L * 2, Z, Hkv * D]`.
        table: `[B, W]`.
        lengths: `[B]`.
        parameters: `[n, Hq]`.
        layer: `[1]`, which layer of each page. An operand, so that one compiled kernel
            serves all layers.
    """

    queries: Any
    kv: Any
    table: Any
    lengths: Any
    parameters: Any
    layer: Any


NUM_OPERANDS = len(dataclasses.fields(Operands))


def scratch(problem: Problem) -> dict[str, Any]:
    """Shared memory of every kernel, by the names that `Block` uses."""
    columns, dim, dtype = problem.columns, problem.head_dim, problem.dtype
    tiled, float32 = pages.swizzled(dtype), jnp.float32
    weights = (2, columns, problem.config.tile_tokens)
    return {
        **pages.scratch(problem),
        "queries": plgpu.SMEM((columns, dim), dtype, transforms=tiled),
        "queries_here": plgpu.Barrier(num_arrivals=1 + problem.num_parameters),
        "weights": plgpu.SMEM(weights, dtype, transforms=tiled),
        "sums": plgpu.SMEM((2, columns), float32),
        "results": plgpu.SMEM((columns, dim), dtype),
        "parameters": plgpu.SMEM((max(1, problem.num_parameters), columns), float32),
    }


class Block:
    """One block of threads: a row's query heads of one key/value head.

    Args:
        problem: the call.
        operands: its arrays.
        room: the shared memory of `scratch`.
    """

    def __init__(self, problem: Problem, operands: Operands, room: Room) -> None:
        self.problem, self.operands, self.room = problem, operands, room
        self.row, self.head = lax.axis_index("row"), lax.axis_index("head")
        query_heads = problem.num_kv_heads * problem.group
        self.first_head = self.head * problem.group
        self.first_query = self.row * query_heads + self.first_head
        # Groups of less than 8 share a block of 8 queries with their neighbours: it is
        # computed as a whole, and what is not theirs is not written.
        self.offset = lax.rem(self.first_head, jnp.int32(8))
        # A multiple of 8 that the compiler can see, as the swizzle's tiles want it.
        self.eighth = lax.div(self.first_query, jnp.int32(8))

    def load_queries(self) -> None:
        """Sends for the queries and the score function's parameters."""
        room, columns = self.room, self.problem.columns
        plgpu.copy_gmem_to_smem(
            self.operands.queries.at[pl.ds(self.eighth * 8, columns)],
            room["queries"],
            room["queries_here"],
        )
        for n in range(self.problem.num_parameters):
            heads = pl.ds(self.first_head - self.offset, columns)
            plgpu.copy_gmem_to_smem(
                self.operands.parameters.at[n, heads],
                room["parameters"].at[n],
                room["queries_here"],
            )

    def wait_for_queries(self) -> None:
        """Waits for what `load_queries` sent for."""
        plgpu.barrier_wait(self.room["queries_here"])

    def first_pass(self, split: Array, splits: int) -> Partial:
        """Attends to a split of the row; queries are loaded beside the first pages."""
        self.load_queries()
        scheme = scheme_of(self.problem)
        return self._attend(scheme, split, splits, self.wait_for_queries)

    def _attend(
        self, scheme: Scheme, split: Array, splits: int, wait: Callable[[], None]
    ) -> Partial:
        problem, room = self.problem, self.room
        work = pages.span(problem, self.operands.lengths, self.row, split, splits)
        ring = pages.Ring(
            problem,
            self.operands.kv,
            self.operands.table,
            self.operands.layer[0],
            self.head,
            room["keys"],
            room["values"],
            room["keys_here"],
            room["values_here"],
        )

        def ready() -> tuple[Array, ...]:
            wait()
            return tuple(
                plgpu.load(room["parameters"].at[n], layout=inner.COLUMNS)
                for n in range(problem.num_parameters)
            )

        return inner.attend(
            problem, scheme, ring, work, room["queries"], room["weights"], ready
        )

    def publish(self, partial: Partial) -> None:
        """Leaves weight sums and largest scores (natural) in shared memory."""
        self.room["sums"][0] = partial.total
        self.room["sums"][1] = partial.highest * LN_2
        plgpu.commit_smem()

    def corrected(self, partial: Partial) -> Partial:
        """The sums, computed again for query heads that left the bounds."""
        unified = self.problem.unified
        if unified is None or self.problem.always_running:
            return partial
        low, high = unified.phi + unified.low, unified.phi + unified.high

        def outside(highest: Array) -> Array:
            # -inf: the query sees no token, and its zeros are right.
            return (highest >= high) | ((highest <= low) & (highest > -jnp.inf))

        wrong = functools.reduce(
            jnp.logical_or,
            [
                outside(self.room["sums"][1, self.offset + g])
                for g in range(self.problem.group)
            ],
        )

        def again() -> tuple[Array, Array]:
            right = self._attend(inner.Running(), jnp.int32(0), 1, lambda: None)
            which = jnp.where(
                outside(partial.highest * LN_2), 1.0, jnp.zeros_like(partial.highest)
            )
            wide = inner.spread(which, self.problem.head_dim)
            return (
                jnp.where(wide > 0.0, right.out, partial.out),
                jnp.where(which > 0.0, right.total, partial.total),
            )

        out, total = lax.cond(wrong, again, lambda: (partial.out, partial.total))
        return Partial(out, total, partial.highest)

    def write(self, partial: Partial, out: Any, highest: Any) -> None:
        """Divides, and writes the block's rows of the result and its maxima."""
        problem, room = self.problem, self.room
        plgpu.copy_smem_to_gmem(room["sums"].at[1], highest.at[self.row, self.head])
        one = jnp.ones_like(partial.total)
        share = 1.0 / jnp.where(partial.total > 0.0, partial.total, one)
        result = partial.out * inner.spread(share, problem.head_dim)
        _scatter(room["results"].transpose((1, 0)), result.astype(problem.dtype))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(
            room["results"].at[pl.ds(self.offset, problem.group)],
            out.at[pl.ds(self.first_query, problem.group)],
        )
        plgpu.wait_smem_to_gmem(0)


def scheme_of(problem: Problem) -> Scheme:
    """What the weights of the first pass are relative to."""
    if problem.unified is None or problem.always_running:
        return inner.Running()
    return inner.Unified(problem.unified.phi)


def _scatter(ref: Any, value: Array) -> None:
    """Stores element by element; JAX 0.12 wants to be told that it may be slow."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, value, optimized=False)
    else:
        ref[...] = value
