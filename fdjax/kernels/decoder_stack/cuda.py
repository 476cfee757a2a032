"""`decoder_stack` as one chain of CUDA kernels, called through XLA's FFI."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.activations import ACTIVATIONS
from fdjax.kernels.decode_attention import cuda as attention_cuda
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.decoder_stack import config
from fdjax.kernels.decoder_stack.weights import LayerWeights, StackSpec
from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.op import Impl
from fdjax.kernels.rms_norm.cuda import MAX_ROW_BYTES
from fdjax.notation import Array, Float, Int32

NAME = "decoder_stack"


def run(
    x: Float[Array, "B E"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " B"],
    slots: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    frequencies: Float[Array, " R2"],
    layers: tuple[LayerWeights, ...],
    *,
    spec: StackSpec,
) -> tuple[Float[Array, "B E"], Float[Array, "P L 2 Z Hkv D"], Int32[Array, "L B"]]:
    """See `fdjax.kernels.decoder_stack.decoder_stack`; `kv` is updated in place."""
    operands = (x, kv, positions, slots, page_table, lengths, frequencies)
    max_tokens = page_table.shape[1] * kv.shape[3]
    cuts = config.choose(x.shape[0], kv.shape[4], max_tokens, layers[0])
    return call(operands, layers, spec=spec, cuts=cuts)


def call(
    operands: tuple[Array, ...],
    layers: tuple[LayerWeights, ...],
    *,
    spec: StackSpec,
    cuts: config.Cuts,
) -> tuple[Float[Array, "B E"], Float[Array, "P L 2 Z Hkv D"], Int32[Array, "L B"]]:
    """`run` with the work cut as told; `operands` are its arguments up to `layers`."""
    x, kv, positions, slots, page_table, lengths, frequencies = operands
    rows, hidden = x.shape
    _, num_layers, _, _, num_kv_heads, _ = kv.shape
    first = layers[0]
    mixed, gated = first.out.shape[1], first.down.shape[1]

    def buffer(columns: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, columns), x.dtype)

    counts = jax.ShapeDtypeStruct((num_layers, rows, num_kv_heads), jnp.int32)
    chain = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            buffer(hidden),
            jax.ShapeDtypeStruct(kv.shape, kv.dtype),
            buffer(hidden),
            buffer(hidden),
            buffer(first.qkv.shape[0]),
            buffer(mixed),
            buffer(gated),
            counts,
        ),
        input_output_aliases={1: 1},
    )
    window = spec.windows[0]
    bounds = spec.unified or UnifiedMax(0.0, -1.0, 1.0)
    out, kv, *_, recomputed = chain(
        *(x, kv, slots, page_table, lengths, angles(positions, frequencies)),
        *flat_weights(layers),
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
        activation=np.int64(list(ACTIVATIONS).index(spec.activation)),
        window=np.int64(window or 0),
        attention_splits=np.int64(cuts.attention.splits),
        attention_heads=np.int64(cuts.attention.heads_per_block),
        attention_warps=np.int64(cuts.attention.warps),
        products=np.asarray(cuts.products, np.int64),
    )
    return out, kv, jnp.sum(recomputed, axis=-1)


def angles(
    positions: Int32[Array, " B"], frequencies: Float[Array, " R2"]
) -> Float[Array, "2 B R2"]:
    """Cosines and sines of RoPE, which all layers share."""
    turns = positions[:, None].astype(jnp.float32) * frequencies
    return jnp.stack([jnp.cos(turns), jnp.sin(turns)])


def flat_weights(layers: Sequence[LayerWeights]) -> list[Array]:
    """The weights in the order of the handler; an absent bias leaves no gap."""
    return [leaf for layer in layers for leaf in jax.tree.leaves(layer)]


def refuse(
    x: Float[Array, "B E"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    positions: Int32[Array, " B"],
    slots: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    frequencies: Float[Array, " R2"],
    layers: tuple[LayerWeights, ...],
    *,
    spec: StackSpec,
) -> str | None:
    """Why the chain cannot serve this call, or `None`."""
    del positions, slots
    if reason := ffi.refuse(NAME, platform="gpu"):
        return reason
    if x.shape[0] > matmul_config.MAX_FLAT_M:
        return f"{x.shape[0]} rows; the flat products take {matmul_config.MAX_FLAT_M}"
    if len(set(spec.windows)) > 1:
        return "layers differ in their sliding windows"
    if x.shape[1] * x.dtype.itemsize > MAX_ROW_BYTES:
        return f"a row is {x.shape[1]} elements; rms_norm takes {MAX_ROW_BYTES} bytes"
    if frequencies.shape[0] % 8:
        return f"{frequencies.shape[0]} frequencies of RoPE; it takes multiples of 8"
    first = layers[0]
    for weight in (first.qkv, first.out, first.up, first.down):
        n, k = weight.shape
        if n % 16 or k % 8:
            return f"a weight is [{n}, {k}]; it takes multiples of 16 and 8"
    heads = first.out.shape[1] // kv.shape[5]
    q = jax.ShapeDtypeStruct((x.shape[0], heads, kv.shape[5]), x.dtype)
    return attention_cuda.refuse_arguments(q, kv, page_table, lengths)  # pyright: ignore[reportArgumentType]  (shapes are all it reads)


IMPL = Impl(run, refuse)
