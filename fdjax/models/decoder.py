"""The one decoder: every family is this module under another `ModelConfig`."""

import jax
from flax import nnx

from fdjax.config import Learned
from fdjax.layers import (
    Batch,
    Embedder,
    FeedForward,
    Head,
    Normalisation,
    PositionTable,
    SelfAttention,
)
from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Float


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
    ) -> tuple[Float[Array, "T E"], Float[Array, "P L 2 Z Hkv D"]]:
        """Runs the layer; returns the residual stream and the updated KV array."""
        normal = self.attention_norm(x)
        attended, kv = self.attention(normal, kv, batch)
        if self.mlp_norm is None:
            return x + attended + self.mlp(normal), kv
        x = x + _maybe(self.attention_post_norm, attended)
        return x + _maybe(self.mlp_post_norm, self.mlp(self.mlp_norm(x))), kv


class Decoder(nnx.Module):
    """A decoder-only language model over a paged KV array.

    Its parameters hold `jax.ShapeDtypeStruct`s until a loader fills them; the layers
    are unrolled, each with its own arrays (a scan would re-slice stacked weights in
    every step).

    Args:
        config: the model, declared.
        dtype: type of the parameters and of the activations.
    """

    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike) -> None:
        size = config.hidden_size
        self.config = config
        self.embed = Embedder(config.embedding, size, dtype=dtype)
        self.positions = self.embed_norm = nnx.data(None)
        if isinstance(config.positions, Learned):
            self.positions = PositionTable(config.positions, size, dtype=dtype)
        if config.embedding.norm is not None:
            self.embed_norm = Normalisation(config.embedding.norm, size, dtype=dtype)
        self.layers = nnx.List(
            [DecoderLayer(config, i, dtype=dtype) for i in range(config.num_layers)]
        )
        self.final_norm = Normalisation(config.norm, size, dtype=dtype)
        self.head = Head(config.embedding, size, dtype=dtype)

    def __call__(
        self, kv: Float[Array, "P L 2 Z Hkv D"], batch: Batch
    ) -> tuple[Float[Array, "T E"], Float[Array, "P L 2 Z Hkv D"]]:
        """The normalised last hidden state of every token, and the updated KV array."""
        x = self.embed(batch.tokens)
        if self.positions is not None:
            x = x + self.positions(batch.positions)
        x = _maybe(self.embed_norm, x)
        for layer in self.layers:
            x, kv = layer(x, kv, batch)
        return self.final_norm(x), kv

    def logits(self, hidden: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Logits of hidden states, in float32."""
        return self.head(hidden, self.embed.weight[...])


def _maybe(norm: Normalisation | None, x: Float[Array, "T E"]) -> Float[Array, "T E"]:
    return x if norm is None else norm(x)
