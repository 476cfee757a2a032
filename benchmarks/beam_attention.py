"""Attention of beams alone: GB/s over prompts at a time (the paper's Fig. 6).

Bytes are keys and values that some beam reads, each once: those of a prompt once for
all of its beams. What is timed is a chain of calls, as of the layers of a step: each
has the result of the one before as its queries.
"""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from fdjax.kernels.beam_attention import BeamView, beam_attention
from fdjax.kernels.paged import KVCache, PageView
from fdjax.kernels.shared_prefix import plan_prompts
from fdjax.notation import Array

HEADS, SIZE, BEAMS, PAGE_SIZE = 40, 128, 4, 16
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CALLS = 32


def measure_attention(
    *,
    context: int,
    tokens: int,
    batches: tuple[int, ...] = BATCHES,
    heads: int = HEADS,
    repeats: int = 20,
) -> list[dict[str, Any]]:
    """Heads and head size of Llama-2-13B, 4 beams, by default.

    Args:
        context: tokens of each prompt.
        tokens: of each beam after it.
        batches: prompts at a time.
        heads: of queries and of keys.
        repeats: of each measurement.
    """
    rows: list[dict[str, Any]] = []
    for batch in batches:
        call, num_bytes = _call(batch, context, tokens, heads)
        call().block_until_ready()
        times: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            call().block_until_ready()
            times.append((time.perf_counter() - start) / CALLS)
        median = statistics.median(times)
        gb_s = num_bytes / median / 1e9
        rows.append(
            {
                "case": "fig6",
                "engine": "fdjax",
                "prompts": batch,
                "beams": BEAMS,
                "context": context,
                "tokens": tokens,
                "us": round(median * 1e6, 2),
                "gb_s": round(gb_s, 1),
                "spread": round((max(times) - min(times)) / median, 4),
                **results.share_of_ceiling(gb_s),
                **results.provenance(),
            }
        )
        print(rows[-1], flush=True)
    return rows


def _call(batch: int, context: int, tokens: int, heads: int) -> tuple[Any, int]:
    """A call ready to run, and the bytes that it must read."""
    of_prompt, own = -(-context // PAGE_SIZE), -(-tokens // PAGE_SIZE)
    random = np.random.default_rng(0)
    num_pages = batch * (of_prompt + BEAMS * own)
    ids = random.permutation(num_pages).astype(np.int32)
    cut = batch * of_prompt
    count = batch * BEAMS
    dtype = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
    shape = (num_pages, 1, 2, PAGE_SIZE, heads, SIZE)
    key = jax.random.key(0)
    kv = KVCache.page_major(jax.random.normal(key, shape, dtype))
    q = jax.random.normal(key, (count, heads, SIZE), dtype)
    origins = random.integers(0, BEAMS, (count, own * PAGE_SIZE)).astype(np.int32)
    view = BeamView(
        jnp.asarray(ids[:cut].reshape(batch, of_prompt)),
        jnp.full(batch, context, jnp.int32),
        jnp.asarray(origins),
        plan_prompts([context] * batch, width=BEAMS, num_kv_heads=heads, group=1),
    )
    pages = PageView.decoding(
        jnp.asarray(ids[cut:].reshape(count, own)),
        jnp.full(count, tokens, jnp.int32),
    )

    @jax.jit
    def attend(q: Array, kv: KVCache, pages: PageView, view: BeamView) -> Array:
        for _ in range(CALLS):
            q = beam_attention(q, kv.layer(0), pages, view, scale=SIZE**-0.5)
        return q

    # Of a step some beams' keys are read by several, those of others by none.
    in_groups = origins.reshape(batch, BEAMS, -1)[:, :, :tokens]
    distinct = sum(
        len(set(group[:, step].tolist()))
        for group in in_groups
        for step in range(tokens)
    )
    each = 2 * heads * SIZE * jnp.dtype(dtype).itemsize
    return lambda: attend(q, kv, pages, view), (batch * context + distinct) * each
