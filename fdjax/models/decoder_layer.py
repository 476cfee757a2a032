"""One layer of the decoder, whatever its family."""

import jax
from flax import nnx

from fdjax.layers import Batch, FeedForward, Normalisation, SelfAttention
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float, Int32


class DecoderLayer(nnx.Module):
    """Attention and feed-forward part with their normalisations and residuals.

    Args:
        config: the model.
        layer: index of this layer.
        dtype: type of the parameters.
    """

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        size = config.hidden_size
        parallel = config.residual == "parallel"
        self.attention_norm = Normalisation(config.norm, size, dtype=dtype)
        self.attention = SelfAttention(
            config.attention,
            config.positions,
            size,
            layer=layer,
            window=config.windows[layer],
            unified=config.unified,
            dtype=dtype,
        )
        self.mlp_norm = (
            None if parallel else Normalisation(config.norm, size, dtype=dtype)
        )
        self.mlp = FeedForward(config.mlp, size, dtype=dtype)
        self.attention_post_norm = self.mlp_post_norm = nnx.data(None)
        if config.post_norms:
            self.attention_post_norm = Normalisation(config.norm, size, dtype=dtype)
            self.mlp_post_norm = Normalisation(config.norm, size, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "T E"],
        kv: Float[Array, "P L 2 Z Hkv D"],
        batch: Batch,
    ) -> tuple[Float[Array, "T E"], Float[Array, "P L 2 Z Hkv D"], Int32[Array, " B"]]:
        """Runs the layer.

        Returns:
            The residual stream, the updated KV array, and how many query heads of each
            row attention computed again.
        """
        normal = self.attention_norm(x)
        attended, kv, recomputed = self.attention(normal, kv, batch)
        if self.mlp_norm is None:
            return x + attended + self.mlp(normal), kv, recomputed
        x = x + maybe(self.attention_post_norm, attended)
        x = x + maybe(self.mlp_post_norm, self.mlp(self.mlp_norm(x)))
        return x, kv, recomputed


def maybe(norm: Normalisation | None, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """`x`, normalised where there is a norm."""
    return x if norm is None else norm(x)
