"""Estimates of what a step needs besides weights and KV, for the memory plan."""

import jax
import jax.numpy as jnp

from fdjax.kernels.prefill_attention.blocked import BLOCK_QUERIES
from fdjax.models.config import ModelConfig

FLOAT32_BYTES = 4


def workspace_bytes(
    config: ModelConfig,
    *,
    dtype: jax.typing.DTypeLike,
    num_tokens: int,
    num_rows: int,
    max_model_len: int,
) -> int:
    """Temporaries of the largest prefill call and of sampling.

    Args:
        config: the model.
        dtype: type of the activations.
        num_tokens: tokens of the largest prefill call.
        num_rows: rows of the largest batch.
        max_model_len: longest sequence, in tokens.
    """
    attention, mlp = config.attention, config.mlp
    heads = 2 * attention.num_heads + 2 * attention.num_kv_heads
    wide = 3 * mlp.size if mlp.gated else 2 * mlp.size
    per_token = 4 * config.hidden_size + max(heads * attention.head_dim, wide)
    activations = num_tokens * per_token * jnp.dtype(dtype).itemsize
    # Short prompts are attended to all at once, long ones a block of queries at a time;
    # scores and their exponentials live together.
    pairs = BLOCK_QUERIES * max(num_tokens, max_model_len)
    scores = 2 * pairs * attention.num_heads * FLOAT32_BYTES
    # Raw logits, changed ones, noise and one more while sorting.
    logits = 4 * num_rows * config.embedding.vocab_size * FLOAT32_BYTES
    return activations + scores + logits


def page_workspace_bytes(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike, page_size: int
) -> int:
    """Temporaries of one gathered page of one layer, in the reference attention.

    The reference gathers the pages it reads and widens them to float32.
    """
    elements = page_size * config.attention.num_kv_heads * config.attention.head_dim
    return 2 * elements * (jnp.dtype(dtype).itemsize + FLOAT32_BYTES)
