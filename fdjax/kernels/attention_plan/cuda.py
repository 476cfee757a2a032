"""The plan made on the device, by one block, called through XLA's FFI."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan.shape import PlanShape
from fdjax.notation import Array, Int32

NAME = "attention_plan"


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
        kv_heads=np.int64(shape.num_kv_heads),
        room=np.int64(room),
        window=np.int64(window),
        slots=np.int64(shape.slots),
        heads=np.int64(shape.heads),
        max_items=np.int64(shape.max_items),
        max_pieces=np.int64(shape.max_pieces),
    )
