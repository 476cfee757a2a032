"""How a ragged batch is cut into work: FlashInfer's plan, as it is defined.

First the queries are cut into tiles. Where these are too few for all blocks of the GPU,
or some see far more keys than others, their keys are cut, too: each piece leaves sums,
which are added when all are done.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.notation import Array, Int32

TILE_ROWS = 128
"""Queries of a tile times heads of a group; handlers check the shape of records."""
WORK = 8
"""Integers of an item of work."""
KEY_TILE = 128
"""Keys of a piece are a multiple of these, but for the first and the last."""
PIECE_COST = 2
"""What beginning and ending a piece costs, in tiles of keys (2 us on an H200)."""
MAX_SHARE = 4
"""Pieces that a block may get, if all blocks get as much: 1 to so many are tried."""
MANTISSA_BITS = 23
ROOT_OF_TWO = 0x3504F3
"""Its mantissa, as a float."""
MAX_WAVES = 4
"""Where the tiles alone give every block more items than these, no keys are cut."""


class Tiles(NamedTuple):
    """Neighbouring queries of a row; columns of as many tiles as there can be.

    Attributes:
        row: of the batch.
        first: of its queries, in `q`.
        position: of that in its sequence.
        tokens: how many queries; 0: no tile.
    """

    row: Int32[Array, " N"]
    first: Int32[Array, " N"]
    position: Int32[Array, " N"]
    tokens: Int32[Array, " N"]


class Room(NamedTuple):
    """What the blocks of a GPU have room for; static.

    Attributes:
        blocks: that run at once, for each key/value head.
        records: of pieces, for each key/value head; 0: keys are not cut.
    """

    blocks: float
    records: int


def room_of(max_tiles: int, num_kv_heads: int, processors: int) -> Room:
    """The room for pieces: two for each block, or none where tiles are enough."""
    blocks = processors / num_kv_heads
    enough = max_tiles > MAX_WAVES * blocks
    return Room(blocks, 0 if enough else int(2 * blocks))


def most_tiles(num_queries: int, num_rows: int, tile_tokens: int) -> int:
    """How many tiles there can be."""
    return num_queries // tile_tokens + num_rows


# A function of its own: traced once for all layers of a model, whose calls XLA finds to
# be the same.
@functools.partial(
    jax.jit, static_argnames=("num_queries", "max_tokens", "tile_tokens", "room")
)
def work_of(
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"],
    firsts: Int32[Array, " B"],
    window: Int32[Array, ""],
    *,
    num_queries: int,
    max_tokens: int,
    tile_tokens: int,
    room: Room,
) -> Int32[Array, "M 8"]:
    """The work of a batch, what has the most keys first.

    Blocks take it in this order, and so end at about the same time (FlashInfer,
    section 3.3.1: the longest first). Of tiles with about as many keys, those of a row
    follow one another: blocks that work at the same time read the same keys.

    Args:
        lengths: of each row, as in `PageView`; so are `starts` and `firsts`.
        starts: position of the first query of each row.
        firsts: where in `q` the queries of each row begin.
        window: how many tokens a query sees.
        num_queries: of all rows, padding included.
        max_tokens: that a row's pages have room for.
        tile_tokens: how many neighbouring queries of a row make a tile.
        room: for pieces of tiles.

    Returns:
        The fields of `Tile` in ffi/prefill_attention/params.h, for each piece; what is
        not used comes last and has no tokens.
    """
    tiles = tiles_of(
        lengths,
        starts,
        firsts,
        num_queries=num_queries,
        max_tokens=max_tokens,
        tile_tokens=tile_tokens,
    )
    # Before position 0 a window that is none would take this below the least integer.
    begin = jnp.maximum(jnp.maximum(tiles.position, 0) - window + 1, 0)
    begin = jnp.where(tiles.tokens > 0, begin, 0)
    end = jnp.where(tiles.tokens > 0, tiles.position + tiles.tokens, 0)
    begin_tile = begin // KEY_TILE
    # A tile that ends before its sequence begins has no keys, and not less than none.
    sizes = jnp.maximum(-(-end // KEY_TILE) - begin_tile, 0)
    pieces = pieces_of(sizes, room)
    ends = jnp.cumsum(pieces)
    index = jnp.arange(len(sizes) + room.records, dtype=jnp.int32)
    tile = jnp.searchsorted(ends, index, side="right", method="compare_all")
    tile = jnp.minimum(tile, len(sizes) - 1).astype(jnp.int32)
    number = pieces[tile]
    piece = index - (ends[tile] - number)
    exists = index < ends[-1]
    cuts = begin_tile[tile] + sizes[tile] * jnp.stack([piece, piece + 1]) // number
    key_begin = jnp.maximum(cuts[0] * KEY_TILE, begin[tile])
    key_end = jnp.minimum(cuts[1] * KEY_TILE, end[tile])
    left = jnp.where(pieces > 1, pieces, 0)  # records
    record = (jnp.cumsum(left) - left)[tile] + piece
    work = jnp.stack(
        [
            tiles.row[tile],
            tiles.first[tile],
            tiles.position[tile],
            jnp.where(exists, tiles.tokens[tile], 0),
            key_begin,
            key_end,
            jnp.where(number > 1, record, -1),
            jnp.where(piece == 0, number, 0),
        ],
        axis=-1,
    )
    order = jnp.argsort(jnp.where(exists, -_class_of(key_end - key_begin), 1))
    return work[order].astype(jnp.int32)


def _class_of(keys: Int32[Array, " M"]) -> Int32[Array, " M"]:
    """Two for each factor of two: exact order costs 3 % where all tiles see thousands.

    Of `keys`, as a float, the exponent, and whether the rest is above the root of two.
    """
    bits = jax.lax.bitcast_convert_type(keys.astype(jnp.float32), jnp.int32)
    above = bits % 2**MANTISSA_BITS > ROOT_OF_TWO
    return 2 * (bits >> MANTISSA_BITS) + above.astype(jnp.int32)


def tiles_of(
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"],
    firsts: Int32[Array, " B"],
    *,
    num_queries: int,
    max_tokens: int,
    tile_tokens: int,
) -> Tiles:
    """The tiles of a batch, row by row, the last of each row first; see `work_of`."""
    num_rows = len(lengths)
    # Kernels trust the tiles. What is between two numbers of 32 bits has no sign.
    stop = jnp.minimum(lengths, max_tokens)
    counts = stop.astype(jnp.uint32) - starts.astype(jnp.uint32)
    room = jnp.clip(num_queries - jnp.maximum(firsts, 0), 0)
    counts = jnp.minimum(counts, room.astype(jnp.uint32)).astype(jnp.int32)
    counts = jnp.where((firsts < 0) | (stop <= starts), 0, counts)
    ends = jnp.cumsum(-(-counts // tile_tokens))  # tiles up to each row
    index = jnp.arange(most_tiles(num_queries, num_rows, tile_tokens), dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all")
    row = jnp.minimum(row, num_rows - 1).astype(jnp.int32)
    offset = (ends[row] - 1 - index) * tile_tokens  # from the last tile of a row
    tokens = jnp.minimum(counts[row] - offset, tile_tokens)
    tokens = jnp.where(index < ends[-1], tokens, 0)
    return Tiles(row, firsts[row] + offset, starts[row] + offset, tokens)


def pieces_of[Sizes: (jax.Array, np.ndarray[Any, Any])](
    sizes: Sizes, room: Room
) -> Sizes:
    """Into how many pieces the keys of each tile are cut; on the device or the host.

    Args:
        sizes: tiles of keys that each tile of queries sees; 0: no tile.
        room: for pieces.

    Returns:
        At least 1 where there is a tile, and no more records than there is room for.
    """
    xp: Any = np if isinstance(sizes, np.ndarray) else jnp
    whole = xp.minimum(sizes, 1)
    if not room.records:
        return whole
    share = sizes.sum().astype(np.float32) / room.blocks
    limits = xp.ceil(share / xp.arange(1, MAX_SHARE + 1, dtype=np.float32)).astype(
        np.int32
    )
    limits = xp.maximum(xp.concatenate([sizes.max()[None], limits]), 1)
    cut = -(-sizes // limits[:, None])  # [candidates, N]
    records = xp.where(cut > 1, cut, 0).sum(axis=1)
    longest = (-(-sizes // xp.maximum(cut, 1))).max(axis=1)
    waves = xp.ceil(cut.sum(axis=1).astype(np.float32) / room.blocks)
    cost = waves * (longest + PIECE_COST).astype(np.float32)
    cost = xp.where(records <= room.records, cost, np.inf)
    return xp.maximum(cut[xp.argmin(cost)], whole)
