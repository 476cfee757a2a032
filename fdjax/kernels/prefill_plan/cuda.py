"""The work of prefill attention listed by one block, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.prefill_plan.tiles import WORK, Room, most_tiles
from fdjax.notation import Array, Int32

NAME = "prefill_plan"
MAX_ROWS, MAX_TILES = ffi.limit(NAME, "max_rows"), ffi.limit(NAME, "max_tiles")
MAX_PIECES = ffi.limit(NAME, "max_pieces")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler; a window of `ALL_TOKENS` is none."""

    tiles: int
    records: int
    queries: int
    max_tokens: int
    tile_tokens: int
    window: int
    blocks: float


def serves(num_rows: int, max_tiles: int, room: Room) -> bool:
    """Whether the block has room for so many rows and tiles."""
    few = not room.records or max_tiles + room.records <= MAX_PIECES
    return few and 1 <= num_rows <= MAX_ROWS and max_tiles <= MAX_TILES


def work_of(
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"],
    firsts: Int32[Array, " B"],
    window: int,
    *,
    num_queries: int,
    max_tokens: int,
    tile_tokens: int,
    room: Room,
) -> Int32[Array, "M 8"]:
    """See `fdjax.kernels.prefill_plan.tiles.work_of`."""
    max_tiles = most_tiles(num_queries, lengths.shape[0], tile_tokens)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((max_tiles + room.records, WORK), jnp.int32),
        vmap_method="sequential",
    )
    return handler(
        lengths,
        starts,
        firsts,
        attributes=ffi.attributes(
            Attributes(
                tiles=max_tiles,
                records=room.records,
                queries=num_queries,
                max_tokens=max_tokens,
                tile_tokens=tile_tokens,
                window=window,
                blocks=float(room.blocks),
            )
        ),
    )
