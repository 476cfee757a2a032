"""Flax modules: weights, and the kernels they call."""

from fdjax.layers.attention import SelfAttention, attend, normalise_heads
from fdjax.layers.batch import (
    Batch,
    beam_batch,
    decode_batch,
    mixed_batch,
    packed_batch,
    prefill_batch,
    select,
)
from fdjax.layers.embedding import Embedder, Head, PositionTable, logits
from fdjax.layers.linear import Linear
from fdjax.layers.mlp import FeedForward, gated
from fdjax.layers.norm import Normalisation

__all__ = [
    "Batch",
    "Embedder",
    "FeedForward",
    "Head",
    "Linear",
    "Normalisation",
    "PositionTable",
    "SelfAttention",
    "attend",
    "beam_batch",
    "decode_batch",
    "gated",
    "logits",
    "mixed_batch",
    "normalise_heads",
    "packed_batch",
    "prefill_batch",
    "select",
]
