"""The one decoder: every family is this module under another `ModelConfig`."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.layers import (
    Batch,
    Embedder,
    Head,
    Normalisation,
    PositionTable,
    decode_batch,
)
from fdjax.models.config import ModelConfig
from fdjax.models.decoder_layer import DecoderLayer, ResidualStream, maybe
from fdjax.models.parameters import parameter_of
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.models.program import LayerProgram, Ran, program_of
from fdjax.notation import Array, Float, Int32


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
        if config.embedding.positions is not None:
            positions = config.embedding.positions
            self.positions = PositionTable(positions, size, dtype=dtype)
        if config.embedding.norm is not None:
            self.embed_norm = Normalisation(config.embedding.norm, size, dtype=dtype)
        self.layers = nnx.List(
            [
                DecoderLayer(spec, size, layer=i, unified=config.unified, dtype=dtype)
                for i, spec in enumerate(config.layers)
            ]
        )
        self.final_norm = Normalisation(config.final_norm, size, dtype=dtype)
        self.head = Head(config.embedding, size, dtype=dtype)

    def __call__(
        self, kv: KVCache, batch: Batch
    ) -> tuple[Float[Array, "U E"], KVCache, Int32[Array, "L B"]]:
        """Runs all layers: by one call, or as they are written below, which defines it.

        Returns:
            The normalised last hidden state of every token, or of those that the batch
            wants, the updated KV array, and how many query heads of each row every
            layer computed again (decoding with a unified maximum; else zeros).
        """
        ran = self._by_program(kv, batch)
        if ran is not None:
            return ran
        counts: list[Array] = []
        stream = ResidualStream(self.embedded(batch), None)
        for layer in self.layers:
            wanted = batch.wanted if layer is self.layers[-1] else None
            stream, kv, recomputed = layer(stream, kv, batch, wanted)
            counts.append(recomputed)
        return self.final_norm.add(*stream).normal, kv, jnp.stack(counts)

    def last_hidden(
        self, kv: KVCache, batch: Batch
    ) -> tuple[Float[Array, "B E"], KVCache, Int32[Array, "L B"]]:
        """The hidden state that logits of each row's last token follow from.

        The last layer's output and feed-forward maps are left out for the others: 1/32
        of the linear maps of Llama-3-8B.

        Returns:
            It (of some other token for a row without new ones), and the rest as above.
        """
        wanted = batch.pages.last_tokens(batch.tokens.shape[0])
        fewer = wanted.shape[0] < batch.tokens.shape[0]
        batch = dataclasses.replace(batch, wanted=wanted if fewer else None)
        hidden, kv, recomputed = self(kv, batch)
        return hidden if fewer else hidden[wanted], kv, recomputed

    def decode(
        self,
        kv: KVCache,
        tokens: Int32[Array, " B"],
        lengths: Int32[Array, " B"],
        page_table: Int32[Array, "B W"],
        prefixes: SharedPrefixes | None = None,
    ) -> tuple[Float[Array, "B V"], KVCache, Int32[Array, "L B"]]:
        """One token a row: see `fdjax.generate.steps.decode`.

        Returns:
            Logits in float32, and the rest as above. Rows without a sequence of their
            own count garbage.
        """
        page_size = kv.page_size
        batch = decode_batch(tokens, lengths, page_table, prefixes, page_size=page_size)
        hidden, kv, recomputed = self(kv, batch)
        return self.logits(hidden), kv, recomputed

    def _by_program(self, kv: KVCache, batch: Batch) -> Ran | None:
        """All before the head as one operation, where an implementation is faster."""
        program = program_of(self.config, selects=batch.wanted is not None)
        paths = program.body_parameters
        operands = tuple(parameter_of(self, path) for path in paths)
        call = LayerProgram(kv, batch, operands, program)
        run = LAYER_PROGRAM.if_fast(call)
        return None if run is None else run(call)

    def embedded(self, batch: Batch) -> Float[Array, "T E"]:
        """What the first layer reads."""
        places = () if self.positions is None else self.positions(batch.positions)
        return maybe(self.embed_norm, self.embed(batch.tokens, *places))

    def logits(self, hidden: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Logits of hidden states, in float32."""
        return self.head(hidden, self.embed.weight.get_value())
