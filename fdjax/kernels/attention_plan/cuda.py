"""The plan made on the device, by one block, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan.shape import PlanShape
from fdjax.notation import Array, Int32

NAME = "attention_plan"


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler; a window of `ALL_TOKENS` is none."""

    kv_heads: int
    room: int
    window: int
    slots: int
    heads: int
    max_items: int
    max_pieces: int
    item_tokens: int
    piece_tokens: int


def make_plan(
    lengths: Int32[Array, " B"], shape: PlanShape, *, room: int, window: int
) -> Int32[Array, " _"]:
    """The integers of a plan; see `fdjax.kernels.attention_plan.host.make_plan`.

    Calls of the same lengths and shape are one to XLA: a step's layers share a plan.
    """
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        jax.ShapeDtypeStruct((shape.size,), jnp.int32),
        vmap_method="sequential",
    )
    return handler(
        lengths,
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
            )
        ),
    )
