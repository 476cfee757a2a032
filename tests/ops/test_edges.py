"""Calls with nothing to do, or with rows that are not as they should be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, ROWS = 4, 2, 8, 4, 3
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


CACHES = {
    "page_major": ops.KVCache.page_major(
        normal(12, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    ),
    "interleaved": ops.KVCache.interleaved(
        normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    ),
    "packed and padded": ops.KVCache.interleaved(
        normal(12, PAGE_SIZE, KV_HEADS, 2, 16), head_dim=HEAD_DIM
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_no_tokens_are_rotated_and_written(name: str):
    cache, none = CACHES[name], jnp.zeros(0, jnp.int32)
    qkv = normal(0, HEADS + 2 * KV_HEADS, HEAD_DIM)

    def loss(qkv: jax.Array) -> Any:
        q, after = ops.rope_and_write(qkv, cache.layer(0), none, none, jnp.ones(4))
        return q.sum(), (q, after)

    gradient, (q, after) = jax.jit(jax.grad(loss, has_aux=True))(qkv)
    assert gradient.shape == qkv.shape
    assert q.shape == (0, HEADS, HEAD_DIM)
    np.testing.assert_array_equal(after.array, cache.array)
