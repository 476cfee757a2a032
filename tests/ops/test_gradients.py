"""Derivatives where keywords of operations are arrays, wherever they are taken."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops
from tests.support.numerics import assert_close

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


TABLE = jnp.arange(12, dtype=jnp.int32).reshape(3, 4)
LENGTHS = jnp.asarray([13, 5, 8], jnp.int32)
KV = ops.KVCache.page_major(normal(12, 1, 2, 4, 2, 8)).layer(0)
QUERY, SINKS = normal(3, 4, 8), normal(4)
type Loss = Callable[[jax.Array, jax.Array], jax.Array]


def of_keys(q: jax.Array, ends: jax.Array) -> jax.Array:
    pages = ops.PageView.decoding(TABLE, LENGTHS)
    keys = ops.KeyRange(ends * 0, ends)
    return ops.attention_states(q, KV, pages, scale=0.3, keys=keys).output.sum()


def of_tree(q: jax.Array, ends: jax.Array) -> jax.Array:
    pages = ops.PageView(TABLE, LENGTHS, LENGTHS - 1)
    tree = jnp.stack([ends.astype(jnp.uint32) | 1], axis=1)
    return ops.attention_states(q, KV, pages, scale=0.3, tree=tree).output.sum()


def under_scan(loss: Loss) -> Loss:
    def scanned(q: jax.Array, ends: jax.Array) -> jax.Array:
        both = jnp.stack([ends, ends])
        return jax.lax.scan(
            lambda sum, one: (sum + loss(q, one), None), q.sum() * 0, both
        )[0]

    return scanned


TRANSFORMED: dict[str, Callable[[Loss], Loss]] = {
    "jit inside": lambda loss: jax.grad(jax.jit(loss)),
    "jit outside": lambda loss: jax.jit(jax.grad(loss)),
    "checkpoint": lambda loss: jax.grad(jax.checkpoint(loss)),
    "scan": lambda loss: jax.grad(lambda q, ends: under_scan(loss)(q, ends) / 2),
    "cond": lambda loss: jax.grad(
        lambda q, ends: jax.lax.cond(ends[0] > 0, loss, lambda q, _: q.sum(), q, ends)
    ),
    "vmap": lambda loss: (
        lambda q, ends: jax.vmap(jax.grad(loss))(q[None], ends[None])[0]
    ),
}


@pytest.mark.parametrize(
    ("loss", "where"),
    [*((of_keys, where) for where in TRANSFORMED), (of_tree, "jit inside")],
)
def test_keywords_may_be_traced(loss: Loss, where: str):
    """A `custom_jvp` that closes over them leaks their tracers."""
    ends = jnp.asarray([3, 4, 5], jnp.int32)
    expected = jax.grad(loss)(QUERY, ends)
    assert_close(TRANSFORMED[where](loss)(QUERY, ends), expected, reduction=64)


def test_the_derivative_by_a_keyword():
    pages = ops.PageView.decoding(TABLE, LENGTHS)

    def loss(sinks: jax.Array, *, by_name: bool) -> jax.Array:
        if by_name:
            found = ops.attention_states(QUERY, KV, pages, sinks=sinks, scale=0.3)
        else:
            found = ops.attention_states(QUERY, KV, pages, None, sinks, scale=0.3)
        return found.output.sum()

    expected = jax.grad(lambda sinks: loss(sinks, by_name=False))(SINKS)
    actual = jax.grad(jax.jit(lambda sinks: loss(sinks, by_name=True)))(SINKS)
    assert_close(actual, expected, reduction=64)
    assert float(jnp.abs(expected).min()) > 0


def of_chunks(q: jax.Array, array: jax.Array) -> jax.Array:
    """Rows of 1, 5 and 2 new tokens; what stands behind them is padding."""
    kv = ops.KVCache.page_major(array).layer(0)
    pages = ops.PageView.packed(TABLE, LENGTHS, LENGTHS - jnp.asarray([1, 5, 2]))
    return ops.attention(q, kv, pages, scale=0.3)[:8].sum()


def of_ragged(q: jax.Array, array: jax.Array) -> jax.Array:
    k = array[:, 0, 0, 0]
    out, _ = ops.ragged_paged_attention(
        q,
        k,
        k,
        array.transpose(0, 1, 3, 2, 4, 5).reshape(12, 4, 4, 8),
        LENGTHS,
        TABLE,
        jnp.asarray([0, 1, 6, 8], jnp.int32),
        jnp.asarray([1, 1, 3], jnp.int32),
        sm_scale=0.3,
    )
    return out[:8].sum()


def of_states(q: jax.Array, array: jax.Array) -> jax.Array:
    kv = ops.KVCache.page_major(array).layer(0)
    pages = ops.PageView.packed(TABLE, LENGTHS, LENGTHS - jnp.asarray([1, 5, 2]))
    return ops.attention_states(q, kv, pages, scale=0.3).output[:8].sum()


@pytest.mark.parametrize("loss", [of_chunks, of_ragged, of_states])
def test_padding_that_is_nan_reaches_no_derivative(loss: Loss):
    q = normal(12, 4, 8)
    padded = q.at[8:].set(jnp.nan)
    expected = jax.grad(loss, argnums=(0, 1))(q, KV.cache.array)
    actual = jax.grad(loss, argnums=(0, 1))(padded, KV.cache.array)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
