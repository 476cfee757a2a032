"""The weights of one layer, as `decoder_stack` takes them."""

from fdjax.notation import Array, Float
from fdjax.pytree import pytree


@pytree
class LayerWeights:
    """Weights of one sequential, RMS-normalised, gated layer.

    Attributes:
        attention_norm: scale before attention.
        qkv: fused QKV product; rows q, k, v.
        qkv_bias: its bias, or `None`.
        out: output product of attention.
        mlp_norm: scale before the feed-forward part.
        up: fused gate and up product, gate first.
        down: down product.
    """

    attention_norm: Float[Array, " E"]
    qkv: Float[Array, "N E"]
    qkv_bias: Float[Array, " N"] | None
    out: Float[Array, "E HqD"]
    mlp_norm: Float[Array, " E"]
    up: Float[Array, "F2 E"]
    down: Float[Array, "E F"]
