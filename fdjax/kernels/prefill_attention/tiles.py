"""How a ragged batch is cut into tiles of queries: FlashInfer's plan, on the device."""

import functools

import jax
import jax.numpy as jnp

from fdjax.notation import Array, Int32


# A function of its own: traced once for all layers of a model, whose calls XLA finds to
# be the same.
@functools.partial(
    jax.jit, static_argnames=("num_queries", "max_tokens", "tile_tokens")
)
def tiles_of(
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"],
    firsts: Int32[Array, " B"],
    *,
    num_queries: int,
    max_tokens: int,
    tile_tokens: int,
) -> Int32[Array, "N 4"]:
    """The tiles of a batch, those that see the most keys first.

    Blocks take tiles in this order, and so end at about the same time (FlashInfer,
    section 3.3.1: the longest first). Of tiles that see about as many, those of a row
    follow one another: blocks that work at the same time read the same keys.

    Args:
        lengths: of each row, as in `PageView`; so are `starts` and `firsts`.
        starts: position of the first query of each row.
        firsts: where in `q` the queries of each row begin.
        num_queries: of all rows, padding included.
        max_tokens: that a row's pages have room for.
        tile_tokens: how many neighbouring queries of a row make a tile.

    Returns:
        Row, first query in `q`, position of that in its sequence, and number of
        queries of each tile; as many tiles as there can be, the last of them empty.
    """
    num_rows = len(lengths)
    counts = jnp.minimum(lengths, max_tokens) - starts
    counts = jnp.clip(counts, 0, jnp.maximum(num_queries - firsts, 0))
    counts = jnp.where(firsts < 0, 0, counts)  # kernels trust the tiles
    ends = jnp.cumsum(-(-counts // tile_tokens))  # tiles up to each row
    index = jnp.arange(num_queries // tile_tokens + num_rows, dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all")
    row = jnp.minimum(row, num_rows - 1).astype(jnp.int32)
    offset = (ends[row] - 1 - index) * tile_tokens  # from the last tile of a row
    exists = index < ends[-1]
    tokens = jnp.where(exists, jnp.minimum(counts[row] - offset, tile_tokens), 0)
    position = starts[row] + offset
    # Within a factor of 1.4: exact order costs 3 % where all tiles see thousands.
    size = jnp.floor(2 * jnp.log2((position + tokens).astype(jnp.float32)))
    order = jnp.argsort(jnp.where(exists, -size, 1.0))
    tiles = jnp.stack([row, firsts[row] + offset, position, tokens], axis=-1)
    return tiles[order].astype(jnp.int32)
