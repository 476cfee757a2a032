"""The arguments of `decoder_stack`."""

from fdjax.kernels.decoder_stack.weights import LayerWeights, StackSpec
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Stacked = tuple[
    Float[Array, "B E"], Float[Array, "P L 2 Z Hkv D"], Int32[Array, "L B"]
]
"""The residual stream, the updated KV array, and what was computed again."""


@pytree
class DecoderStack:
    """One call of `decoder_stack`.

    Attributes:
        x: embedded tokens.
        kv: the KV array. Donate it, and it is updated in place.
        positions: position of each token in its sequence.
        slots: where each token's key and value go, `page * Z + slot`.
        page_table: pages of each row in order; ids `>= P` are absent.
        lengths: tokens of each row, this one included.
        frequencies: of RoPE, see `rope_kv_write`.
        layers: the weights; sequential residuals, RMS norms, gated feed-forward parts.
        spec: what all layers have in common.
    """

    x: Float[Array, "B E"]
    kv: Float[Array, "P L 2 Z Hkv D"]
    positions: Int32[Array, " B"]
    slots: Int32[Array, " B"]
    page_table: Int32[Array, "B W"]
    lengths: Int32[Array, " B"]
    frequencies: Float[Array, " R2"]
    layers: tuple[LayerWeights, ...]
    spec: StackSpec = static()
