"""Estimates of what a step needs besides weights and KV, for the memory plan."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fdjax import device
from fdjax.config import Alibi
from fdjax.engine.buckets import PREFILL_ROWS, SCORED_TOKENS
from fdjax.engine.shared_reads import SharedReads
from fdjax.engine.timed_gemms import tuning_bytes
from fdjax.kernels import decode_attention, prefill_attention
from fdjax.kernels.paged import PageView, ScoreSpec
from fdjax.kernels.prefill_attention.reference import BLOCK_QUERIES
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig

FLOAT32_BYTES = INT32_BYTES = 4
# Page tables, tokens and what prompts ask of sampling on their way, what searches keep,
# and the allocator's rounding and gaps: what sampling takes is one piece, and of a free
# one of which less than 128 MiB would be left it gets all. With 65 MiB an H200 refused
# 407.
SLACK_BYTES = 128 * 2**20


def workspace_bytes(
    config: ModelConfig,
    *,
    dtype: jax.typing.DTypeLike,
    num_tokens: int,
    num_rows: int,
    max_model_len: int,
    page_size: int,
    lent: bool,
) -> int:
    """What lies beside weights and KV array at most.

    That is what sampling keeps of every row, and the temporaries of the largest prefill
    call, of sampling or of compiling a call, whichever has more: they come one after
    the other and share the memory.

    Args:
        config: the model.
        dtype: type of the activations.
        num_tokens: tokens of the largest prefill call.
        num_rows: rows of the largest batch.
        max_model_len: longest sequence, in tokens.
        page_size: tokens of a page.
        lent: steps have what they need in the KV array.
    """
    layout = config.kv_layout(num_pages=1, page_size=page_size, dtype=dtype)
    if lent:  # all else that a step needs lies at the end of the KV array
        activations = pooled_bytes(config, dtype=dtype, num_tokens=num_tokens)
    else:
        activations = separate_bytes(config, dtype=dtype, num_tokens=num_tokens)
    logits = num_rows * config.embedding.vocab_size * FLOAT32_BYTES
    sampling = sampling_bytes(config, num_rows=num_rows)
    scoring = scoring_bytes(config)
    gathered = 0
    if prefill_gathers(config, layout, max_model_len=max_model_len):
        # Each query of a block has its pages, its scores and their exponentials.
        scores = 2 * config.num_heads * FLOAT32_BYTES
        of_key = scores + gathered_token_bytes(config, dtype=dtype)
        gathered = BLOCK_QUERIES * (max_model_len + page_size) * of_key
    prefill = activations + gathered + (0 if lent else logits)
    slots = 0
    if lent and not SharedReads.suit(config):
        # Beams that read their prompts are told a slot of each token.
        slots = num_rows * 2 * max_model_len * INT32_BYTES
    width = layout.pages_for(max_model_len)
    sizes = {"num_tokens": num_tokens, "num_rows": num_rows, "width": width}
    tuning = tuning_bytes(config, layout, **sizes)
    most = max(prefill, sampling + slots, scoring, tuning)
    slack = SLACK_BYTES if device.platform() == "gpu" else 0
    return most + state_bytes(config, num_rows=num_rows) + slack


def pooled_bytes(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike, num_tokens: int
) -> int:
    """States of all tokens of a call that pools prompts.

    They are a result of its layers. On a GPU, who adds them up makes float32 of each
    where it is read.

    Args:
        config: the model.
        dtype: of the activations.
        num_tokens: of the call.
    """
    return num_tokens * config.hidden_size * jnp.dtype(dtype).itemsize


def scoring_bytes(config: ModelConfig) -> int:
    """Temporaries of a call that scores a prompt's tokens.

    Their logits, the same relative to the largest, and exponentials.
    """
    return 3 * SCORED_TOKENS * config.embedding.vocab_size * FLOAT32_BYTES


def sampling_bytes(config: ModelConfig, *, num_rows: int) -> int:
    """Temporaries of sampling, of all stages together.

    Raw logits, changed ones twice, and what may come as one byte each; where the
    definition draws, noise and scores too. Beam searches, whose calls have no more
    rows, take no more.

    Args:
        config: the model.
        num_rows: rows of the largest batch.
    """
    logits = num_rows * config.embedding.vocab_size * FLOAT32_BYTES
    if device.platform() == "gpu":
        return 3 * logits + logits // FLOAT32_BYTES
    return 4 * logits


def separate_bytes(
    config: ModelConfig, *, dtype: jax.typing.DTypeLike, num_tokens: int
) -> int:
    """Activations of a call whose layers run one by one, each result in its own memory.

    Args:
        config: the model.
        dtype: of the activations.
        num_tokens: of the call.
    """
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    wide = max(kind.mlp.up_size + kind.mlp.size for kind in config.kinds)
    per_token = 4 * config.hidden_size + max(heads * config.head_dim, wide)
    return num_tokens * per_token * jnp.dtype(dtype).itemsize


def state_bytes(config: ModelConfig, *, num_rows: int) -> int:
    """What sampling keeps of every row, and of those that a call of prefill seats.

    Of each token of the vocabulary that is its count, whether the prompt has it, and
    whether it may come at all, and now.
    """
    rows = num_rows + min(PREFILL_ROWS, num_rows)
    return rows * config.embedding.vocab_size * (8 * FLOAT32_BYTES + 8 + 2) // 8


def gathered_token_bytes(config: ModelConfig, *, dtype: jax.typing.DTypeLike) -> int:
    """Keys and values of one token and layer, gathered and widened to float32."""
    elements = 2 * config.num_kv_heads * config.head_dim
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
    op, call = decode_attention.OP, decode_attention.DecodeAttention
    calls = _calls(config, layout, num_rows, num_rows, max_model_len)
    return not all(op.fast(call(**each, unified=config.unified)) for each in calls)


def prefill_gathers(
    config: ModelConfig, layout: KVLayout, *, max_model_len: int
) -> bool:
    """Whether the definition serves attention in some layer of a prefill call."""
    op, call = prefill_attention.OP, prefill_attention.PrefillAttention
    calls = _calls(config, layout, 1, 1, max_model_len)
    return not all(op.fast(call(**each)) for each in calls)


def _struct(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> Any:
    """Shapes and types are all that the choice of an implementation reads."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _calls(
    config: ModelConfig,
    layout: KVLayout,
    num_queries: int,
    num_rows: int,
    max_model_len: int,
) -> Iterator[dict[str, Any]]:
    """What calls of attention have in common, one for each kind of layer."""
    heads = config.num_heads
    table = _struct((num_rows, layout.pages_for(max_model_len)), jnp.int32)
    rows = _struct((num_rows,), jnp.int32)
    for kind in config.kinds:
        spec, slopes = kind.attention, None
        if isinstance(spec.positions, Alibi):
            slopes = _struct((heads,), jnp.float32)
        yield {
            "q": _struct((num_queries, heads, spec.head_dim), layout.dtype),
            "kv": jax.eval_shape(layout.allocate).layer(0),
            "pages": PageView(table, rows, starts=rows, firsts=rows),
            "scores": ScoreSpec(slopes, spec.scale, spec.soft_cap, spec.window),
        }
