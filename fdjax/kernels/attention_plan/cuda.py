"""The plan made on the device, by one block, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan.shape import FirstTiles, PlanShape
from fdjax.notation import Array, Int32

NAME = "attention_plan"


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler; a window of `ALL_TOKENS` is none.

    The last four are of the page ids that a plan holds (`FirstTiles`): how many of each
    block, and what they depend on; all 0 where it holds none.
    """

    kv_heads: int
    room: int
    window: int
    slots: int
    heads: int
    max_items: int
    max_pieces: int
    item_tokens: int
    piece_tokens: int
    first_pages: int
    splits: int
    warps: int
    page_size: int


_NO_TILES = FirstTiles(splits=0, warps=0, tiles=0, page_size=0)


def make_plan(
    lengths: Int32[Array, " B"],
    shape: PlanShape,
    page_table: Int32[Array, "B W"] | None = None,
    *,
    room: int,
    window: int,
) -> Int32[Array, " _"]:
    """The integers of a plan; see `fdjax.kernels.attention_plan.host.make_plan`.

    Calls of the same arrays and shape are one to XLA: a step's layers share a plan.

    Args:
        lengths: of the rows.
        shape: of the plan.
        page_table: of the rows, where the plan holds page ids
            (`PlanShape.first_tiles`). Attention with the plan must have the same.
        room: tokens of a row in its pages.
        window: tokens that a query sees.
    """
    first = shape.first_tiles or _NO_TILES
    if page_table is None:
        page_table = jnp.zeros((0, 0), jnp.int32)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((shape.size,), jnp.int32),
        vmap_method="sequential",
    )
    return handler(
        lengths,
        page_table,
        attributes=ffi.attributes(
            Attributes(
                kv_heads=shape.num_kv_heads,
                room=room,
                window=window,
                slots=shape.slots,
                heads=shape.heads,
                max_items=shape.max_items,
                max_pieces=shape.max_pieces,
                item_tokens=shape.item_tokens,
                piece_tokens=shape.piece_tokens,
                first_pages=shape.block_pages,
                splits=first.splits,
                warps=first.warps,
                page_size=first.page_size,
            )
        ),
    )
