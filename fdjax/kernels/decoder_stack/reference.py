"""The definition of `decoder_stack`: the operations of one layer after another."""

import jax.numpy as jnp

from fdjax.kernels.decode_attention import decode_attention_counted
from fdjax.kernels.decoder_stack.weights import LayerWeights, StackSpec
from fdjax.kernels.gated_activation import gated_activation
from fdjax.kernels.matmul import matmul
from fdjax.kernels.rms_norm import rms_norm
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.notation import Array, Float, Int32


def decoder_stack(
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
    """See `fdjax.kernels.decoder_stack.decoder_stack`."""

    def normalised(x: Array, factor: Array) -> Array:
        return rms_norm(x, factor, epsilon=spec.epsilon, scale_offset=spec.scale_offset)

    rows, head_dim = x.shape[0], kv.shape[5]
    recomputed: list[Array] = []
    for index, layer in enumerate(layers):
        qkv = matmul(normalised(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        q, kv = rope_kv_write(
            qkv.reshape(rows, -1, head_dim),
            kv,
            positions,
            slots,
            frequencies,
            layer=index,
            interleaved=spec.interleaved,
        )
        mixed, counts = decode_attention_counted(
            q,
            kv,
            page_table,
            lengths,
            layer=index,
            scale=spec.scale,
            soft_cap=spec.soft_cap,
            window=spec.windows[index],
            unified=spec.unified,
        )
        recomputed.append(jnp.sum(counts, axis=-1))
        x = x + matmul(mixed.reshape(rows, -1), layer.out)
        up = matmul(normalised(x, layer.mlp_norm), layer.up)
        x = x + matmul(gated_activation(up, activation=spec.activation), layer.down)
    return x, kv, jnp.stack(recomputed)
