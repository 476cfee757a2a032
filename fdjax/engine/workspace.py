"""Estimates of what a step needs besides weights and KV, for the memory plan."""

from typing import Any

import jax
import jax.numpy as jnp

from fdjax.config import Alibi
from fdjax.kernels.decode_attention import OP, DecodeAttention
from fdjax.kernels.op import REFERENCE
from fdjax.kernels.paged import ScoreSpec
from fdjax.kernels.prefill_attention.blocked import BLOCK_QUERIES
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig

FLOAT32_BYTES = 4


def workspace_bytes(
    config: ModelConfig,
    *,
    dtype: jax.typing.DTypeLike,
    num_tokens: int,
    num_rows: int,
    max_model_len: int,
    page_size: int,
) -> int:
    """Temporaries of the largest prefill call or of sampling, whichever has more.

    Calls run one after the other and share the memory.

    Args:
        config: the model.
        dtype: type of the activations.
        num_tokens: tokens of the largest prefill call.
        num_rows: rows of the largest batch.
        max_model_len: longest sequence, in tokens.
        page_size: tokens of a page.
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
    logits = num_rows * config.embedding.vocab_size * FLOAT32_BYTES
    # Raw logits, changed ones, noise and one more while sorting.
    sampling = 4 * logits
    # Prefill gathers the pages of its prompts; each may end with a page begun.
    gathered = num_tokens + num_rows * page_size
    gathered *= gathered_token_bytes(config, dtype=dtype)
    return max(activations + scores + gathered + logits, sampling)


def gathered_token_bytes(config: ModelConfig, *, dtype: jax.typing.DTypeLike) -> int:
    """Keys and values of one token and layer, gathered and widened to float32."""
    elements = 2 * config.attention.num_kv_heads * config.attention.head_dim
    return elements * (jnp.dtype(dtype).itemsize + FLOAT32_BYTES)


def page_workspace_bytes(
    config: ModelConfig, layout: KVLayout, *, num_rows: int, max_model_len: int
) -> int:
    """Temporaries of decode that grow with the KV array, a page.

    The definition of attention gathers the pages it reads; where another
    implementation serves, which reads them where they lie, there are none.

    Args:
        config: the model.
        layout: the largest KV array it may get.
        num_rows: rows of the largest batch.
        max_model_len: longest sequence, in tokens.
    """
    if not decode_gathers(
        config, layout, num_rows=num_rows, max_model_len=max_model_len
    ):
        return 0
    return layout.page_size * gathered_token_bytes(config, dtype=layout.dtype)


def decode_gathers(
    config: ModelConfig, layout: KVLayout, *, num_rows: int, max_model_len: int
) -> bool:
    """Whether the definition serves attention in some layer of a decode step."""
    attention, heads = config.attention, config.attention.num_heads
    struct: Any = jax.ShapeDtypeStruct  # shapes and types are all that the choice reads
    slopes = None
    if isinstance(config.positions, Alibi):
        slopes = struct((heads,), jnp.float32)
    choices = {
        OP.choice(
            DecodeAttention(
                q=struct((num_rows, heads, attention.head_dim), layout.dtype),
                kv=struct(layout.shape, layout.dtype),
                page_table=struct(
                    (num_rows, layout.pages_for(max_model_len)), jnp.int32
                ),
                lengths=struct((num_rows,), jnp.int32),
                scores=ScoreSpec(slopes, attention.scale, attention.soft_cap, window),
                layer=0,
                unified=config.unified,
            )
        )
        for window in set(config.windows)
    }
    return REFERENCE in choices
