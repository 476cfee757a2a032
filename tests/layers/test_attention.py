"""`attend`: whatever scores are made of reaches the operation of every phase."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.beam_attention import BeamView, beam_attention
from fdjax.kernels.decode_attention import decode_attention
from fdjax.kernels.paged import KVCache, ScoreSpec
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.layers import Batch, attend, beam_batch, decode_batch, prefill_batch
from fdjax.notation import Array

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 4, 2, 8, 4
TABLE = jnp.asarray([[0, 1], [2, 3]], jnp.int32)
ONES = jnp.ones(2, jnp.int32)


def drawn(*shape: int, seed: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def scores() -> ScoreSpec:
    slopes, sinks = (jnp.abs(drawn(HEADS, seed=seed)) for seed in (1, 2))
    return ScoreSpec(slopes, 0.3, 2.0, 3, sinks)


def batches() -> dict[str, Batch]:
    beams = BeamView(TABLE[:1] + 4, ONES[:1] * 5, jnp.zeros((2, 4), jnp.int32))
    lengths = ONES * 3
    return {
        "decode": decode_batch(ONES, lengths, TABLE, page_size=PAGE_SIZE),
        "prefill": prefill_batch(
            jnp.ones((2, 4), jnp.int32), lengths, TABLE, page_size=PAGE_SIZE
        ),
        "beams": beam_batch(ONES, lengths - 1, TABLE, beams, page_size=PAGE_SIZE),
    }


@pytest.mark.parametrize("phase", ["decode", "prefill", "beams"])
def test_all_of_the_scores_reaches_the_operation(phase: str):
    batch, spec = batches()[phase], scores()
    kv = KVCache.page_major(drawn(6, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM, seed=0))
    q = drawn(batch.tokens.size, HEADS, HEAD_DIM, seed=3)
    options: dict[str, Any] = {"scale": 0.3, "soft_cap": 2.0, "window": 3}
    terms = spec.slopes, spec.sinks
    if phase == "decode":
        run = jax.jit(functools.partial(decode_attention, **options))
        expected, _ = run(q, kv.layer(0), batch.pages, *terms)
    elif phase == "prefill":
        run = jax.jit(functools.partial(prefill_attention, **options))
        expected, _ = run(q, kv.layer(0), batch.pages, *terms)
    else:
        assert batch.beams is not None
        run = jax.jit(functools.partial(beam_attention, **options))
        expected = run(q, kv.layer(0), batch.pages, batch.beams, *terms)
    actual, recomputed = jax.jit(attend)(q, kv.layer(0), batch, spec, None)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
    assert not recomputed.any()
