"""What `decoder_stack` is told of a model: the weights of a layer, and constants."""

from dataclasses import dataclass

from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float
from fdjax.pytree import pytree


@pytree
class LayerWeights:
    """Weights of one sequential, RMS-normalised, gated layer.

    Attributes:
        attention_norm: scale before attention.
        qkv: fused QKV product, `[N, E]`; rows q, k, v.
        qkv_bias: its bias, or `None`.
        out: output product of attention, `[E, HqD]`.
        mlp_norm: scale before the feed-forward part.
        up: fused gate and up product, `[2 F, E]`; gate first.
        down: down product, `[E, F]`.
    """

    attention_norm: Float[Array, " E"]
    qkv: Weight
    qkv_bias: Float[Array, " N"] | None
    out: Weight
    mlp_norm: Float[Array, " E"]
    up: Weight
    down: Weight


@dataclass(frozen=True)
class StackSpec:
    """What all layers have in common; static.

    Attributes:
        windows: sliding window of each layer, `None` for full attention.
        scale: factor of the scores.
        soft_cap: of the scores, or `None`.
        interleaved: pairing of RoPE.
        epsilon: of the norms.
        scale_offset: of the norms' scales.
        activation: of the gate.
        unified: maximum of the asynchronous softmax; `None`: the synchronised one.
    """

    windows: tuple[int | None, ...]
    scale: float
    soft_cap: float | None
    interleaved: bool
    epsilon: float
    scale_offset: float
    activation: str
    unified: UnifiedMax | None = None
