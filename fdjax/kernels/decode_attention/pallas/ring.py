"""Pages on their way: from the KV array through a ring of tiles in shared memory."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.notation import Array

type PageIds = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Span:
    """The tiles that a block reads.

    Attributes:
        row: of the batch.
        first_page: of the first tile, in the row's order.
        last_page: of the row; tiles may reach beyond, and repeat it.
        tiles: how many.
        lowest: position of the first token that is seen.
        length: tokens of the row.
    """

    row: Array
    first_page: Array
    last_page: Array
    tiles: Array
    lowest: Array
    length: Array


def span(problem: Problem, lengths: Any, row: Array, split: Array, splits: int) -> Span:
    """The part of a row's seen tokens that is `split`'s, in whole tiles."""
    length = lengths[row]
    lowest = jnp.int32(0)
    if problem.window is not None:
        lowest = jnp.maximum(length - problem.window, 0)
    first = lax.div(lowest, jnp.int32(problem.page_size))
    end = pl.cdiv(length, jnp.int32(problem.page_size))
    tiles = pl.cdiv(end - first, jnp.int32(problem.tile_pages))
    share = pl.cdiv(tiles, jnp.int32(splits))
    skipped = split * share
    return Span(
        row=row,
        first_page=first + skipped * problem.tile_pages,
        last_page=jnp.maximum(end - 1, 0),
        tiles=jnp.clip(tiles - skipped, 0, share),
        lowest=lowest,
        length=length,
    )


@dataclasses.dataclass(frozen=True)
class Ring:
    """Keys and values of up to `stages` tiles, and the barriers they arrive at.

    One copy a page and half: a page's tokens of one head are rows `Hkv * D` apart,
    which TMA gathers, swizzles and lays down as the tensor core reads them.
    Page ids are asked for a tile ahead of their use, so that no copy waits for them.

    Attributes:
        problem: the call.
        pages: the KV array as `[P * L * 2, Z, Hkv * D]`.
        table: the page table.
        layer: which layer of each page.
        head: the key/value head of the block.
        keys: `[stages, T, D]` in shared memory.
        values: the same.
        keys_here: a barrier for each stage.
        values_here: the same.
    """

    problem: Problem
    pages: Any
    table: Any
    layer: Array
    head: Array
    keys: Any
    values: Any
    keys_here: Any
    values_here: Any

    def slot(self, tile: Array) -> Array:
        """Where a tile lies in the ring."""
        return lax.rem(tile, jnp.int32(self.problem.config.stages))

    def ids(self, work: Span, tile: Array) -> PageIds:
        """The pages of a tile."""
        first = work.first_page + tile * self.problem.tile_pages
        return tuple(
            self.table[work.row, jnp.minimum(first + j, work.last_page)]
            for j in range(self.problem.tile_pages)
        )

    def fetch(self, tile: Array, ids: PageIds) -> None:
        """Sends for a tile; its slot must have been read by all warps."""
        slot = self.slot(tile)
        for half, room, here in (
            (0, self.keys, self.keys_here),
            (1, self.values, self.values_here),
        ):
            for j, page in enumerate(ids):
                self._copy(page, half, room, slot, j, here.at[slot])

    def _copy(
        self, page: Array, half: int, room: Any, slot: Array, j: int, here: Any
    ) -> None:
        problem = self.problem
        rows = pl.ds(j * problem.page_size, problem.page_size)
        block = (page * problem.num_layers + self.layer) * 2 + half
        columns = pl.ds(self.head * problem.head_dim, problem.head_dim)
        plgpu.copy_gmem_to_smem(
            self.pages.at[block, :, columns],
            room.at[slot, rows],
            here,
        )

    def start(self, work: Span) -> PageIds:
        """Fills the ring, and returns the ids of the tile after.

        All ids are asked for before any is used: they arrive together.
        """
        stages = self.problem.config.stages
        ids = [self.ids(work, jnp.int32(tile)) for tile in range(stages + 1)]
        for tile in range(stages):
            pl.when(tile < work.tiles)(
                lambda tile=tile: self.fetch(jnp.int32(tile), ids[tile])
            )
        return ids[stages]

    def refill(self, work: Span, tile: Array, ids: PageIds) -> None:
        """Sends for the tile that takes the place of the one before `tile`."""
        follower = tile - 1 + self.problem.config.stages
        pl.when((tile > 0) & (follower < work.tiles))(lambda: self.fetch(follower, ids))


def clear_beyond(values: Any, start: Array, work: Span, shape: tuple[int, int]) -> None:
    """Zeros in place of what lies beyond a row's length: it may be NaN.

    Its weights are zero, and zero times NaN is NaN. Only a row's last tile needs it.
    """
    layout, width = plgpu.Layout.WGMMA, 64  # of a swizzled tile

    @pl.when(start + shape[0] > work.length)
    def _() -> None:
        part = (shape[0], width)
        held = plgpu.broadcasted_iota(jnp.int32, part, 0, layout=layout) + start
        held = held < work.length
        for column in range(0, shape[1], width):
            block = values.at[:, pl.ds(column, width)]
            here = plgpu.load(block, layout=layout)
            block[...] = jnp.where(held, here, jnp.zeros_like(here))
        plgpu.commit_smem()


def scratch(problem: Problem) -> dict[str, Any]:
    """The ring's shared memory and barriers."""
    config = problem.config
    tiled = swizzled(problem.dtype)
    shape = (config.stages, config.tile_tokens, problem.head_dim)
    barrier = plgpu.Barrier(num_arrivals=problem.tile_pages, num_barriers=config.stages)
    return {
        "keys": plgpu.SMEM(shape, problem.dtype, transforms=tiled),
        "values": plgpu.SMEM(shape, problem.dtype, transforms=tiled),
        "keys_here": barrier,
        "values_here": barrier,
    }


def swizzled(dtype: jax.typing.DTypeLike) -> tuple[Any, ...]:
    """The arrangement in shared memory that the tensor core reads without conflicts."""
    # Pyright takes the generic base's methods for abstract ones.
    tiling: Any = plgpu.TilingTransform
    swizzle: Any = plgpu.SwizzleTransform
    return tiling((8, 128 // jnp.dtype(dtype).itemsize)), swizzle(128)
