"""One layer of the decoder, whatever its family."""

from typing import NamedTuple

import jax
from flax import nnx

from fdjax.config import LayerSpec, Norm
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch, FeedForward, Normalisation, SelfAttention, select
from fdjax.notation import Array, Float, Int32


class ResidualStream(NamedTuple):
    """The residual stream between two layers: the next norm adds `delta` to `x`."""

    x: Float[Array, "T E"]
    delta: Float[Array, "T E"] | None


class DecoderLayer(nnx.Module):
    """Attention and feed-forward part with their normalisations and residuals.

    Args:
        spec: the layer, declared.
        hidden_size: `E`.
        layer: its index.
        unified: maximum of the asynchronous softmax, or `None`.
        dtype: type of the parameters.
    """

    def __init__(
        self,
        spec: LayerSpec,
        hidden_size: int,
        *,
        layer: int,
        unified: UnifiedMax | None,
        dtype: jax.typing.DTypeLike,
    ) -> None:
        def norm(declared: Norm | None) -> Normalisation | None:
            return declared and Normalisation(declared, hidden_size, dtype=dtype)

        self.attention_norm = Normalisation(
            spec.attention_norm, hidden_size, dtype=dtype
        )
        self.attention = SelfAttention(
            spec.attention, hidden_size, layer=layer, unified=unified, dtype=dtype
        )
        self.mlp_norm = norm(spec.mlp_norm)
        self.mlp = FeedForward(spec.mlp, hidden_size, dtype=dtype)
        self.attention_post_norm = norm(spec.attention_post_norm)
        self.mlp_post_norm = norm(spec.mlp_post_norm)

    def __call__(
        self,
        stream: ResidualStream,
        kv: KVCache,
        batch: Batch,
        wanted: Int32[Array, " U"] | None = None,
    ) -> tuple[ResidualStream, KVCache, Int32[Array, " B"]]:
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
        delta = maybe(self.attention_post_norm, delta)
        if self.mlp_norm is None:
            added = maybe(self.mlp_post_norm, self.mlp(normal))
            return ResidualStream(x + delta, added), kv, recomputed
        normal, x = self.mlp_norm.add(x, delta)
        added = maybe(self.mlp_post_norm, self.mlp(normal))
        return ResidualStream(x, added), kv, recomputed


def maybe(norm: Normalisation | None, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """`x`, normalised where there is a norm."""
    return x if norm is None else norm(x)
