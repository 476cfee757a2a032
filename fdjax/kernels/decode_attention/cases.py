"""Calls of `decode_attention` that real models make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import Case, Tag, noise, struct
from fdjax.kernels.decode_attention.arguments import DecodeAttention
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec


def _case(
    name: str,
    *tags: Tag,
    rows: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    tokens: int,
    page_size: int = 16,
    layers: int = 2,
    alibi: bool = False,
    sinks: bool = False,
    soft_cap: float | None = None,
    window: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> Case[DecodeAttention]:
    width, lengths = -(-tokens // page_size), struct(rows, dtype=jnp.int32)
    shape = (rows * width + 1, layers, 2, page_size, kv_heads, head_dim)
    call = DecodeAttention(
        struct(rows, q_heads, head_dim, dtype=dtype),
        KVCache.page_major(struct(*shape, dtype=dtype)).layer(layers - 1),
        PageView(struct(rows, width, dtype=jnp.int32), lengths, starts=lengths),
        ScoreSpec(
            struct(q_heads, dtype=jnp.float32) if alibi else None,
            scale=head_dim**-0.5,
            soft_cap=soft_cap,
            window=window,
            sinks=struct(q_heads, dtype=jnp.float32) if sinks else None,
        ),
        unified=None,
    )
    return Case(name, call, frozenset(tags))


def _llama3_8b(*, rows: int, tokens: int, layers: int) -> Case[DecodeAttention]:
    return _case(
        f"llama3_8b_{rows}x{tokens}",
        "bench",
        rows=rows,
        q_heads=32,
        kv_heads=8,
        head_dim=128,
        tokens=tokens,
        layers=layers,
    )


# fmt: off
CASES: tuple[Case[DecodeAttention], ...] = (
    # Layers enough that a step's reads do not fit the L2.
    _llama3_8b(rows=1, tokens=1024, layers=32),
    _llama3_8b(rows=8, tokens=1024, layers=32),
    _llama3_8b(rows=32, tokens=1024, layers=16),
    _llama3_8b(rows=64, tokens=1024, layers=8),
    _llama3_8b(rows=128, tokens=1024, layers=8),
    _llama3_8b(rows=256, tokens=1024, layers=8),
    _llama3_8b(rows=1, tokens=32768, layers=8),
    _llama3_8b(rows=8, tokens=32768, layers=8),
    _case("llama2_7b", "ci", rows=3, q_heads=32, kv_heads=32, head_dim=128, tokens=96,
          dtype=jnp.float16),
    _case("llama3_8b", "ci", rows=5, q_heads=32, kv_heads=8, head_dim=128, tokens=200),
    _case("chatglm2_6b", "ci", rows=4, q_heads=32, kv_heads=2, head_dim=128, tokens=300,
          page_size=32),
    _case("chatglm2_6b_float16", "ci", rows=3, q_heads=32, kv_heads=2, head_dim=128,
          tokens=130, page_size=24, dtype=jnp.float16),
    _case("gemma2_9b", "ci", rows=3, q_heads=16, kv_heads=8, head_dim=256, tokens=150,
          soft_cap=50.0, window=64),
    _case("gemma_2b_mqa", "ci", rows=3, q_heads=8, kv_heads=1, head_dim=256, tokens=140,
          page_size=8, dtype=jnp.float16),
    _case("wide_mqa", "ci", rows=2, q_heads=16, kv_heads=1, head_dim=256, tokens=90),
    _case("wide_mqa_float16", "ci", rows=2, q_heads=16, kv_heads=1, head_dim=256,
          tokens=90, dtype=jnp.float16),
    _case("bloom_560m", "ci", rows=3, q_heads=16, kv_heads=16, head_dim=64, tokens=120,
          alibi=True, dtype=jnp.float16),
    _case("mistral_window", "ci", rows=4, q_heads=32, kv_heads=8, head_dim=128,
          tokens=260, page_size=128, window=50),
    _case("opt_2p7b", "ci", rows=3, q_heads=32, kv_heads=32, head_dim=80, tokens=70,
          dtype=jnp.float16),
    _case("phi3_mini", "ci", rows=3, q_heads=32, kv_heads=32, head_dim=96, tokens=70),
    _case("tales_5m_bfloat16", "ci", rows=2, q_heads=4, kv_heads=2, head_dim=64,
          tokens=48),
    _case("odd_group", "ci", rows=3, q_heads=15, kv_heads=3, head_dim=64, tokens=40,
          page_size=9),
    _case("tales_5m", "ci", rows=8, q_heads=4, kv_heads=2, head_dim=64, tokens=160,
          layers=6, dtype=jnp.float32),
    _case("gpt_oss_20b", "ci", rows=3, q_heads=64, kv_heads=8, head_dim=64, tokens=170,
          window=128, sinks=True),
    _case("sinks", "ci", rows=4, q_heads=6, kv_heads=3, head_dim=128, tokens=150,
          soft_cap=3.0, sinks=True, dtype=jnp.float16),
    _case("sinks_float32", "ci", rows=4, q_heads=6, kv_heads=3, head_dim=20, tokens=60,
          sinks=True, dtype=jnp.float32),
    _case("falcon_7b", "ci", rows=2, q_heads=71, kv_heads=1, head_dim=64, tokens=50),
    # A head of no whole vectors, and of some and a rest, in pages of one slot and five.
    _case("odd_head", "ci", rows=3, q_heads=9, kv_heads=3, head_dim=3, tokens=70,
          page_size=1, soft_cap=2.0, dtype=jnp.float32),
    _case("odd_head_alibi", "ci", rows=4, q_heads=6, kv_heads=2, head_dim=42, tokens=70,
          page_size=5, alibi=True, window=33, dtype=jnp.float16),
)
# fmt: on


def arguments(case: Case[DecodeAttention], *, seed: int = 0) -> DecodeAttention:
    """A case's call with arrays: pages in random order, ragged lengths, the last full.

    Pages beyond a row's length are absent.
    """
    call, random = case.call, np.random.default_rng(seed)
    rows, width = call.pages.page_table.shape
    cache = call.kv.cache
    held = random.integers(0, call.max_tokens + 1, rows).astype(np.int32)
    held[-1] = call.max_tokens
    pages = random.permutation(cache.num_pages)[: rows * width].reshape(rows, width)
    absent = np.arange(width) * cache.page_size >= held[:, None]
    pages = np.where(absent, cache.num_pages + 7, pages).astype(np.int32)
    heads, spec = jnp.arange(1.0, call.q.shape[1] + 1), call.scores
    scores = dataclasses.replace(
        spec,
        slopes=None if spec.slopes is None else -jnp.exp2(-heads),
        sinks=None if spec.sinks is None else 3.0 * jnp.sin(heads),
    )
    q, filled = noise(random, call.q), cache.with_array(noise(random, cache.array))
    return dataclasses.replace(
        call,
        q=q,
        kv=filled.layer(call.kv.index),
        pages=PageView.decoding(jnp.asarray(pages), jnp.asarray(held)),
        scores=scores,
    )
