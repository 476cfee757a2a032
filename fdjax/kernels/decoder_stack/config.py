"""How the kernels of the chain cut their work."""

import dataclasses
from typing import NamedTuple

from fdjax import device
from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack.weights import LayerWeights
from fdjax.kernels.matmul import config as matmul_config

GEMV = (0, 0, 0, 0, 0)  # a product of no tiles is A's

# Of the dense part (dense_params.h).
WARPGROUPS = 4
TOKENS = 8
UNIT = 4
ROWS = 8
DENSE_ROWS = range(2, 9)
MAX_TILE_ROWS = 64
BOX_COLUMNS, BOXES = 64, 4
MAX_DENSE_STAGES = 12


class Tiles(NamedTuple):
    """What a block of the dense part computes of a product."""

    tiles: int
    tile_rows: int


@dataclasses.dataclass(frozen=True)
class Dense:
    """The cut of a layer's dense part, one persistent kernel.

    Attributes:
        stages: slots of the ring.
        qkv: a block's share of each product.
        out: the same.
        up: the same; half of the tiles are gate rows.
        down: as `out`, for whose results its threads wait for nobody.
    """

    stages: int
    qkv: Tiles
    out: Tiles
    up: Tiles
    down: Tiles

    def numbers(self) -> tuple[int, ...]:
        """As the handler takes them."""
        return (self.stages, *self.qkv, *self.out, *self.up, *self.down)


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Launch parameters of the chain.

    Attributes:
        attention: of `decode_attention`.
        products: of each of a layer's four products in order, the fields of its
            `FlatConfig`, or `GEMV`.
        dense: of the dense part; `None` where each product is a kernel of its own.
    """

    attention: attention_config.Config
    products: tuple[int, ...]
    dense: Dense | None


def choose(rows: int, num_kv_heads: int, max_tokens: int, layer: LayerWeights) -> Cuts:
    """The cuts for a call.

    Args:
        rows: `B`.
        num_kv_heads: `Hkv`.
        max_tokens: what the page table has room for.
        layer: whose weights tell the sizes.
    """
    call = attention_config.Call(rows, num_kv_heads, max_tokens)
    return Cuts(
        attention_config.heuristic(call), _products(rows, layer), dense(rows, layer)
    )


def _products(rows: int, layer: LayerWeights) -> tuple[int, ...]:
    if rows == 1:
        # A's many small blocks and B's few large ones leave each other little room: of
        # Llama-3-8B, all by A takes 3,720 us, all by B 4,016, and each product by what
        # is fastest for it alone 4,262.
        return GEMV * 4
    return (
        *_flat(rows, layer.qkv.shape),
        *_flat(rows, layer.out.shape),
        *_flat(rows, layer.up.shape, gated=True),
        *_flat(rows, layer.down.shape),
    )


def _flat(rows: int, shape: tuple[int, ...], *, gated: bool = False) -> tuple[int, ...]:
    n, k = shape
    return dataclasses.astuple(matmul_config.flat_config(rows, n, k, gated=gated))


def dense(rows: int, layer: LayerWeights) -> Dense | None:
    """The cut of the dense part, or `None` where it does not fit."""
    sizes = (layer.qkv.shape[1], layer.out.shape[1], layer.down.shape[1])
    if (
        rows not in DENSE_ROWS
        or layer.qkv.dtype != "bfloat16"
        or any(k % BOX_COLUMNS for k in sizes)
    ):
        return None
    qkv = tiles(layer.qkv.shape[0])
    out = tiles(layer.out.shape[0])
    up = tiles(layer.down.shape[1], gated=True)
    if qkv is None or out is None or up is None:
        return None
    return Dense(stages((qkv, out, up)), qkv, out, up, out)


def stages(cuts: tuple[Tiles, ...]) -> int:
    """Slots of the ring that fit beside the sums (`dense.cuh`).

    Deeper is faster, though attention's blocks then find no room before the dense part
    has ended.
    """
    sums = WARPGROUPS * TOKENS * (MAX_TILE_ROWS + 4) * 4
    rest = 1024 + 4096  # alignment; barriers, parameters and the like
    slot = BOXES * (max(cut.tile_rows for cut in cuts) + TOKENS) * BOX_COLUMNS * 2
    return min((matmul_config.SHARED_BYTES - sums - rest) // slot, MAX_DENSE_STAGES)


def tiles(columns: int, *, gated: bool = False) -> Tiles | None:
    """The fewest columns for each block that one block a multiprocessor can cover."""
    share = _round_up(-(-columns // device.multiprocessors()), ROWS)
    for count in (1, 2, WARPGROUPS):
        shares = count // 2 if gated else count
        if not shares:
            continue
        tile_rows = _round_up(-(-share // shares), ROWS)
        units = shares * tile_rows // UNIT * TOKENS
        fits = gated or units <= WARPGROUPS * 128  # of what a norm follows
        if tile_rows <= MAX_TILE_ROWS and fits:
            return Tiles(count, tile_rows)
    return None


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
