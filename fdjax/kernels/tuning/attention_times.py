"""Times of attention's layers, in programs that hold many of them.

Each has the result of the one before as its queries, as the layers of a step do, over
keys and values that the L2 cache does not hold. A program is one CUDA graph, and many
launches of it stand in a row.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import noise, struct
from fdjax.kernels.decode_attention import OP, DecodeAttention, table
from fdjax.kernels.decode_attention.table import Blocks
from fdjax.kernels.paged import KVCache, PagedAttention, PageView, ScoreSpec
from fdjax.kernels.tuning.stopwatch import median_seconds
from fdjax.notation import Array, Float

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
"""Of Llama-3-8B."""
PAGE_SIZE = 16
DTYPE = jnp.bfloat16
# Four times what an L2 holds, in as many layers as that takes; half of Llama-3-8B's at
# least, which have one plan.
_ROTATED_BYTES = 200_000_000
_LAYERS = 16, 48


class BlockTimes:
    """Times of rows that decode, by the blocks that serve them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], DecodeAttention] = {}

    def microseconds(self, blocks: Blocks, rows: int, tokens: int) -> float:
        """Of a layer, where `blocks` chooses, and rows have so many tokens each.

        Raises:
            Unsupported: no CUDA kernel serves it here.
        """
        if (rows, tokens) not in self._kept:
            self._kept.clear()  # before the next one takes its memory
            self._kept[rows, tokens] = _of_equal_rows(rows, tokens)
        with table.PART.using(blocks):
            return microseconds(attend, self._kept[rows, tokens])


def attend(call: DecodeAttention) -> Float[Array, "B Hq D"]:
    """The result by the CUDA kernels."""
    with OP.using("cuda"):
        return OP(call)[0]


def microseconds[C: PagedAttention](attend: Callable[[C], Array], call: C) -> float:
    """The median of a layer.

    Args:
        attend: the operation.
        call: of any layer; all of its cache's are read.

    Raises:
        Unsupported: see `attend`.
    """
    run: Any = jax.jit(chain(attend)).lower(call).compile()
    return median_seconds(lambda: run(call)) / call.kv.cache.num_layers * 1e6


def chain[C: PagedAttention](attend: Callable[[C], Array]) -> Callable[[C], Array]:
    """The function of all layers; new, so that jit has not traced it."""

    def every_layer(call: C) -> Array:
        q, cache = call.q, call.kv.cache
        for layer in range(cache.num_layers):
            q = attend(dataclasses.replace(call, q=q, kv=cache.layer(layer)))
        return q

    return every_layer


def made_cache(num_pages: int, *, num_kv_heads: int = NUM_KV_HEADS) -> KVCache:
    """Keys and values, the same noise in each page, of as many layers as are needed."""
    of_layer = (2, PAGE_SIZE, num_kv_heads, HEAD_DIM)
    num_bytes = num_pages * math.prod(of_layer) * DTYPE.dtype.itemsize
    fewest, most = _LAYERS
    layers = min(max(_ROTATED_BYTES // num_bytes, fewest), most)
    page = noise(np.random.default_rng(0), struct(layers, *of_layer, dtype=DTYPE))
    shape = (num_pages, *page.shape)
    copies = jax.jit(lambda page: jnp.broadcast_to(page, shape).copy())
    return KVCache.page_major(copies(page))


def made_queries(rows: int, *, num_heads: int = NUM_HEADS) -> Float[Array, "B Hq D"]:
    """Noise."""
    shape = struct(rows, num_heads, HEAD_DIM, dtype=DTYPE)
    return noise(np.random.default_rng(1), shape)


def plain_scores() -> ScoreSpec:
    """Without anything that depends on positions."""
    return ScoreSpec(None, scale=HEAD_DIM**-0.5, soft_cap=None, window=None)


def _of_equal_rows(rows: int, tokens: int) -> DecodeAttention:
    """Rows whose pages lie in random order, and are full."""
    width = -(-tokens // PAGE_SIZE)
    ids = np.random.default_rng(2).permutation(rows * width).reshape(rows, width)
    pages = PageView.decoding(
        jnp.asarray(ids, jnp.int32), jnp.full(rows, tokens, jnp.int32)
    )
    kv = made_cache(rows * width).layer(0)
    return DecodeAttention(made_queries(rows), kv, pages, plain_scores(), unified=None)
