"""The definition of `decoder_stack`: the operations of one layer after another."""

import jax.numpy as jnp

from fdjax.kernels.add_norm import Normalised, add_norm
from fdjax.kernels.decode_attention import decode_attention
from fdjax.kernels.decoder_stack.arguments import DecoderStack, Stacked
from fdjax.kernels.gated_activation import gated_activation
from fdjax.kernels.matmul import matmul
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.notation import Array


def decoder_stack(call: DecoderStack) -> Stacked:
    """See `fdjax.kernels.decoder_stack.decoder_stack`."""
    x, kv, spec = call.x, call.kv, call.spec
    delta: Array | None = None  # what the layer before adds to x

    def add(x: Array, delta: Array | None, scale: Array) -> Normalised:
        epsilon, offset = spec.epsilon, spec.scale_offset
        return add_norm(x, delta, scale, epsilon=epsilon, scale_offset=offset)

    rows, head_dim = x.shape[0], kv.head_dim
    positions = call.pages.positions(rows)
    slots = call.pages.slots(rows, page_size=kv.page_size)
    recomputed: list[Array] = []
    for index, layer in enumerate(call.layers):
        normal, x = add(x, delta, layer.attention_norm)
        qkv = matmul(normal, layer.qkv, layer.qkv_bias)
        q, kv = rope_kv_write(
            qkv.reshape(rows, -1, head_dim),
            kv.layer(index),
            positions,
            slots,
            call.frequencies,
            interleaved=spec.interleaved,
        )
        mixed, counts = decode_attention(
            q,
            kv.layer(index),
            call.pages,
            scale=spec.scale,
            soft_cap=spec.soft_cap,
            window=spec.windows[index],
            unified=spec.unified,
        )
        recomputed.append(jnp.sum(counts, axis=-1))
        normal, x = add(x, matmul(mixed.reshape(rows, -1), layer.out), layer.mlp_norm)
        up = matmul(normal, layer.up)
        delta = matmul(gated_activation(up, activation=spec.activation), layer.down)
    return x if delta is None else x + delta, kv, jnp.stack(recomputed)
