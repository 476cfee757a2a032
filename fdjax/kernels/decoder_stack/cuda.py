"""`decoder_stack` as one chain of CUDA kernels, called through XLA's FFI."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.activations import place
from fdjax.kernels.add_norm.cuda import MAX_ROW_BYTES
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import cuda as attention_cuda
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.decoder_stack import config
from fdjax.kernels.decoder_stack.arguments import DecoderStack, Stacked
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import ScoreSpec
from fdjax.notation import Array, Float, Int32

NAME = "decoder_stack"


def run(call: DecoderStack) -> Stacked:
    """See `fdjax.kernels.decoder_stack.decoder_stack`; `kv` is updated in place."""
    attention = attention_cuda.config_call(_attention(call))
    cuts = config.choose(call.x.shape[0], attention, call.layers[0])
    return run_cut(call, cuts)


def run_cut(call: DecoderStack, cuts: config.Cuts) -> Stacked:
    """`run` with the work cut as told."""
    x, kv, spec = call.x, call.kv, call.spec
    rows, hidden = x.shape
    first = call.layers[0]
    mixed, gated = first.out.shape[1], first.down.shape[1]

    def buffer(columns: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, columns), x.dtype)

    # The library writes gate and up columns, the package's kernels their product alone.
    wide_rows = rows if cuts.uses_library else 0
    wide = jax.ShapeDtypeStruct((wide_rows, first.up.shape[0]), x.dtype)
    counts = jax.ShapeDtypeStruct((kv.num_layers, rows, kv.num_kv_heads), jnp.int32)
    attention = _attention(call)
    shape = cuts.attention.plan_shape(rows, kv.num_kv_heads)
    floats = shape.record_floats(attention.group, kv.head_dim)
    chain = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            buffer(hidden),
            jax.ShapeDtypeStruct(kv.array.shape, kv.dtype),
            buffer(hidden),
            buffer(hidden),
            buffer(first.qkv.shape[0]),
            buffer(mixed),
            buffer(gated),
            wide,
            counts,
            jax.ShapeDtypeStruct((floats,), jnp.float32),
        ),
        input_output_aliases={1: 1},
    )
    window = spec.windows[0]
    bounds = spec.unified or UnifiedMax(0.0, -1.0, 1.0)
    out, written, *_, recomputed, _ = chain(
        x,
        kv.array,
        call.pages.slots(rows, page_size=kv.page_size),
        call.pages.page_table,
        call.pages.lengths,
        attention_cuda.plan_for(attention, shape),
        angles(call.pages.positions(rows), call.frequencies),
        *jax.tree.leaves(call.layers),  # an absent bias leaves no gap
        interleaved=np.bool_(spec.interleaved),
        has_qkv_bias=np.bool_(first.qkv_bias is not None),
        unified=np.bool_(spec.unified is not None),
        scale=np.float32(spec.scale),
        soft_cap=np.float32(spec.soft_cap or 0.0),
        epsilon=np.float32(spec.epsilon),
        scale_offset=np.float32(spec.scale_offset),
        phi=np.float32(bounds.phi),
        low=np.float32(bounds.low),
        high=np.float32(bounds.high),
        activation=np.int64(place(spec.activation)),
        window=np.int64(window or 0),
        **cuts.attention.attributes(shape),
        products=np.asarray(cuts.products, np.int64),
    )
    return out, kv.with_array(written), jnp.sum(recomputed, axis=-1)


def angles(
    positions: Int32[Array, " B"], frequencies: Float[Array, " R2"]
) -> Float[Array, "2 B R2"]:
    """Cosines and sines of RoPE, which all layers share."""
    turns = positions[:, None].astype(jnp.float32) * frequencies
    return jnp.stack([jnp.cos(turns), jnp.sin(turns)])


def refuse(call: DecoderStack) -> str | None:
    """Why the chain cannot serve this call, or `None`."""
    return (
        ffi.refuse(NAME, platform="gpu")
        or ffi.refuse_below_sm90()
        or _refuse_arguments(call)
    )


def _refuse_arguments(call: DecoderStack) -> str | None:
    x, spec, first = call.x, call.spec, call.layers[0]
    half = call.frequencies.shape[0]
    if len(set(spec.windows)) > 1:
        return "layers differ in their sliding windows"
    if (row_bytes := x.shape[1] * x.dtype.itemsize) > MAX_ROW_BYTES:
        return f"a row is {row_bytes} bytes; add_norm takes {MAX_ROW_BYTES}"
    if half % 8:
        return f"{half} frequencies of RoPE; it takes multiples of 8"
    for weight in (first.qkv, first.out, first.up, first.down):
        n, k = weight.shape
        if n % 16 or k % 8:
            return f"a weight is [{n}, {k}]; it takes multiples of 16 and 8"
    return attention_cuda.refuse_arguments(_attention(call))


def _attention(call: DecoderStack) -> DecodeAttention:
    """The first layer's attention; its queries are not there yet."""
    spec, head_dim = call.spec, call.kv.head_dim
    heads = call.layers[0].out.shape[1] // head_dim
    q: Any = jax.ShapeDtypeStruct((call.x.shape[0], heads, head_dim), call.x.dtype)
    return DecodeAttention(
        q,
        call.kv.layer(0),
        call.pages,
        ScoreSpec(None, spec.scale, spec.soft_cap, spec.windows[0]),
        unified=spec.unified,
    )


IMPL = Impl(run, refuse)
