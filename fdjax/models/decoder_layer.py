"""One layer of the decoder, whatever its family."""

from typing import NamedTuple

import jax
from flax import nnx

from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch, FeedForward, Normalisation, SelfAttention, select
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float, Int32


class Stream(NamedTuple):
    """The residual stream between two layers: the next norm adds `delta` to `x`."""

    x: Float[Array, "T E"]
    delta: Float[Array, "T E"] | None


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
        stream: Stream,
        kv: KVCache,
        batch: Batch,
        wanted: Int32[Array, " U"] | None = None,
    ) -> tuple[Stream, KVCache, Int32[Array, " B"]]:
        """Runs the layer.

        Args:
            stream: the residual stream.
            kv: the KV array.
            batch: the tokens.
            wanted: those that the stream goes on with; `None`: all. Of the others only
                keys and values are computed.

        Returns:
            The residual stream, the updated KV array, and how many query heads of each
            row attention computed again.
        """
        normal, x = self.attention_norm.add(*stream)
        delta, kv, recomputed = self.attention(normal, kv, batch, wanted)
        normal, x = select(normal, wanted), select(x, wanted)
        if self.mlp_norm is None:
            return Stream(x, delta + self.mlp(normal)), kv, recomputed
        normal, x = self.mlp_norm.add(x, maybe(self.attention_post_norm, delta))
        delta = maybe(self.mlp_post_norm, self.mlp(normal))
        return Stream(x, delta), kv, recomputed


def maybe(norm: Normalisation | None, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """`x`, normalised where there is a norm."""
    return x if norm is None else norm(x)
