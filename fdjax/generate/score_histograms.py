"""A prefill that counts attention scores in histograms, and keeps none of them.

What the softmax calibration of section III of FlashDecoding++Next is read from.
"""

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.paged import KVCache, ScoreSpec, scores_of, tokens_within
from fdjax.layers import Batch, SelfAttention, prefill_batch
from fdjax.models.decoder import Decoder
from fdjax.models.decoder_layer import ResidualStream
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree

LIMIT = 512
"""Bins reach from -LIMIT to LIMIT; the outermost ones hold what lies beyond."""

BINS_PER_UNIT = 16
NUM_BINS = 2 * LIMIT * BINS_PER_UNIT

# Scores of one block: 256 queries x 32 heads x 4,096 keys in float32 are 128 MiB.
BLOCK_QUERIES = 256


@pytree
class ScoreHistograms:
    """How many scores fell into each bin, by layer and query head.

    Attributes:
        scores: of every query and every key it sees, as the softmax takes them.
        row_maxima: of the largest score of every query, which decides whether decoding
            would compute its head again.
    """

    scores: Int32[Array, "L Hq bins"]
    row_maxima: Int32[Array, "L Hq bins"]

    @staticmethod
    def zeros(num_layers: int, num_heads: int) -> "ScoreHistograms":
        """Nothing counted."""
        shape = (num_layers, num_heads, NUM_BINS)
        return ScoreHistograms(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


def count_scores(
    model: Decoder,
    kv: KVCache,
    histograms: ScoreHistograms,
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
) -> tuple[KVCache, ScoreHistograms]:
    """Runs whole texts, layer by layer, and counts the scores of every layer.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        histograms: counts so far; donate them. A bin must stay below `2**31`.
        tokens: texts, padded on the right to one length.
        lengths: tokens of each text; 0 marks an empty row.
        page_table: pages of each row in order; ids `>= P` are absent.

    Returns:
        The KV array, and the counts with those of these texts.
    """
    batch = prefill_batch(tokens, lengths, page_table, page_size=kv.page_size)
    scores, row_maxima = histograms.scores, histograms.row_maxima
    stream = ResidualStream(model.embedded(batch), None)
    for index, layer in enumerate(model.layers):
        normal = layer.attention_norm.add(*stream).normal
        q, kv = layer.attention.project(normal, kv, batch)
        counts = _of_layer(layer.attention, q, kv, batch)
        scores = scores.at[index].add(counts[0])
        row_maxima = row_maxima.at[index].add(counts[1])
        # It writes the same keys and values once more.
        stream, kv, _ = layer(stream, kv, batch)
    return kv, ScoreHistograms(scores, row_maxima)


def _of_layer(
    attention: SelfAttention,
    q: Float[Array, "T Hq D"],
    kv: KVCache,
    batch: Batch,
) -> tuple[Int32[Array, "Hq bins"], Int32[Array, "Hq bins"]]:
    """Histograms of one layer: of the scores, and of their largest a query."""
    spec, own = attention.spec, kv.layer(attention.layer)
    rows, block = batch.pages.num_rows, BLOCK_QUERIES
    q = q.reshape(rows, -1, *q.shape[1:])
    num_blocks = -(-q.shape[1] // block)
    padding = num_blocks * block - q.shape[1]
    q = jnp.pad(q, ((0, 0), (0, padding), (0, 0), (0, 0)))
    q = q.reshape(rows * num_blocks, 1, block, *q.shape[2:])
    zeros = jnp.zeros((spec.num_heads, NUM_BINS), jnp.int32)

    def add_block(
        counts: tuple[Array, Array], operands: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        queries, index = operands
        row = index // num_blocks
        positions = index % num_blocks * block + jnp.arange(block, dtype=jnp.int32)
        length = batch.pages.lengths[row]
        table = batch.pages.page_table[row][None]
        keys, _ = own.gather(table)
        present = kv.present(table)
        scores = scores_of(
            queries,
            keys,
            positions[None],
            present & tokens_within(length[None], present.shape[1]),
            ScoreSpec(attention.slopes, spec.scale, spec.soft_cap, spec.window),
        )
        scores = scores.reshape(spec.num_heads, block, -1)
        scores = jnp.where((positions < length)[:, None], scores, -jnp.inf)
        return (
            _counted(counts[0], scores.reshape(spec.num_heads, -1)),
            _counted(counts[1], jnp.max(scores, axis=-1)),
        ), None

    blocks = jnp.arange(rows * num_blocks, dtype=jnp.int32)
    counts, _ = lax.scan(add_block, (zeros, zeros), (q, blocks))
    return counts


def _counted(
    counts: Int32[Array, "Hq bins"], scores: Float[Array, "Hq N"]
) -> Int32[Array, "Hq bins"]:
    """Counts scores by head; -inf stands for a key that is not seen."""
    place = jnp.floor((scores + LIMIT) * BINS_PER_UNIT)
    place = jnp.clip(place, 0, NUM_BINS - 1).astype(jnp.int32)
    place = jnp.where(scores > -jnp.inf, place, NUM_BINS)
    heads = jnp.arange(counts.shape[0])[:, None]
    return counts.at[heads, place].add(1, mode="drop")
