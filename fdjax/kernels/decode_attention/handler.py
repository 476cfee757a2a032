"""What the FFI handlers of `decode_attention` share on every platform."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.notation import Array, Float

NAME = "decode_attention"
MAX_TOKENS = 2**25  # of a row: sums of unified weights stay finite up to here
MAX_SLOTS = 2**31 - 1  # of the KV array, layers and halves counted
ALL_TOKENS = 2**31 - 1


def run(call: DecodeAttention, **launch: np.int64) -> Attended:
    """The handler's result; `launch` is what only one platform's handler takes."""
    q, kv, scores = call.q, call.kv, call.scores
    bounds = call.unified or UnifiedMax(0.0, -1.0, 1.0)
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
        call.page_table,
        call.lengths,
        _by_head(scores.slopes),
        _by_head(scores.sinks),
        layer=np.int64(call.layer),
        scale=np.float32(scores.scale),
        soft_cap=np.float32(scores.soft_cap or 0.0),
        window=np.int64(min(scores.window or ALL_TOKENS, ALL_TOKENS)),
        scheme="synchronised" if call.unified is None else "unified",
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        **launch,
    )
    return out, recomputed


def _by_head(numbers: Float[Array, " Hq"] | None) -> Float[Array, " _"]:
    """A number for each query head; none of them stand for `None`."""
    if numbers is None:
        return jnp.zeros(0, jnp.float32)
    return numbers.astype(jnp.float32)


def refuse_arguments(call: DecodeAttention) -> str | None:
    """Why the arrays are too large for every handler, or `None`."""
    num_pages, num_layers, _, page_size, _, _ = call.kv.shape
    slots = 2 * num_pages * num_layers * page_size
    if call.max_tokens > MAX_TOKENS:
        return f"pages for {call.max_tokens} tokens a row; it takes {MAX_TOKENS}"
    if slots > MAX_SLOTS:
        return f"{slots} slots; it takes {MAX_SLOTS}"
    return None
