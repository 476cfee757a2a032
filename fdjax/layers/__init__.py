"""Flax modules: weights, and the kernels they call."""

from fdjax.layers.attention import SelfAttention
from fdjax.layers.batch import (
    Batch,
    beam_batch,
    decode_batch,
    packed_batch,
    prefill_batch,
    select,
)
from fdjax.layers.embedding import Embedder, Head, PositionTable
from fdjax.layers.linear import Linear
from fdjax.layers.mlp import FeedForward
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
    "beam_batch",
    "decode_batch",
    "packed_batch",
    "prefill_batch",
    "select",
]
