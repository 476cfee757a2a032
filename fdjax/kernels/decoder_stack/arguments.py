"""The arguments of `decoder_stack`."""

from fdjax.kernels.decoder_stack.weights import LayerWeights, StackSpec
from fdjax.kernels.paged import KVCache, PageView
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Stacked = tuple[Float[Array, "B E"], KVCache, Int32[Array, "L B"]]
"""The residual stream, the updated cache, and what was computed again."""


@pytree
class DecoderStack:
    """One call of `decoder_stack`.

    Attributes:
        x: embedded tokens.
        kv: keys and values. Donate it, and it is updated in place.
        pages: the rows, one token each (`PageView.decoding`).
        frequencies: of RoPE, see `rope_kv_write`.
        layers: the weights; sequential residuals, RMS norms, gated feed-forward parts.
        spec: what all layers have in common.
    """

    x: Float[Array, "B E"]
    kv: KVCache
    pages: PageView
    frequencies: Float[Array, " R2"]
    layers: tuple[LayerWeights, ...]
    spec: StackSpec = static()
