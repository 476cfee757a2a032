"""What the FFI handlers of `decode_attention` share on every platform."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.notation import Array, Float, Int32

NAME = "decode_attention"
MAX_TOKENS = 2**25  # of a row: sums of unified weights stay finite up to here
MAX_SLOTS = 2**31 - 1  # of the KV array, layers and halves counted
ALL_TOKENS = 2**31 - 1


def call(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    unified: UnifiedMax | None,
    **launch: np.int64,
) -> tuple[Float[Array, "B Hq D"], Int32[Array, "B Hkv"]]:
    """The handler's result; `launch` is what only one platform's handler takes."""
    bounds = unified or UnifiedMax(0.0, -1.0, 1.0)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((q.shape[0], kv.shape[4]), jnp.int32),
        ),
        vmap_method="sequential",
    )
    out, recomputed = handler(
        q,
        kv,
        page_table,
        lengths,
        jnp.zeros(0, jnp.float32) if slopes is None else slopes.astype(jnp.float32),
        layer=np.int64(layer),
        scale=np.float32(scale),
        soft_cap=np.float32(soft_cap or 0.0),
        window=np.int64(min(window or ALL_TOKENS, ALL_TOKENS)),
        scheme="synchronised" if unified is None else "unified",
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        **launch,
    )
    return out, recomputed


def refuse_arguments(
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
) -> str | None:
    """Why no handler takes these arrays, or `None`."""
    num_pages, num_layers, _, page_size, _, _ = kv.shape
    tokens, slots = page_table.shape[1] * page_size, num_pages * num_layers * page_size
    problems = (
        (
            page_table.dtype != jnp.int32 or lengths.dtype != jnp.int32,
            f"page_table is {page_table.dtype} and lengths {lengths.dtype}; it takes "
            "int32",
        ),
        (
            tokens > MAX_TOKENS,
            f"pages for {tokens} tokens a row; it takes {MAX_TOKENS}",
        ),
        (2 * slots > MAX_SLOTS, f"{2 * slots} slots; it takes {MAX_SLOTS}"),
    )
    return next((reason for wrong, reason in problems if wrong), None)
