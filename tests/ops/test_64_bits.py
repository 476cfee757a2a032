"""The public operations where JAX has 64 bits: `jax_enable_x64`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(4, 50)).astype(np.float32)
QKV = RANDOM.normal(size=(8, 8, 8)).astype(np.float32)
PAGES = RANDOM.normal(size=(12, 1, 2, 4, 2, 8)).astype(np.float32)


def sampled(**filters: Any) -> jax.Array:
    """With the types that JAX makes by default: of 64 bits, where it has them."""
    keys = jnp.zeros((4, 2), jnp.uint32)
    ones, steps = jnp.asarray([1.0, 0.0, 0.5, 2.0]), jnp.arange(4)
    given = {name: jnp.asarray([value] * 4) for name, value in filters.items()}
    return ops.sample(jnp.asarray(LOGITS), keys, steps, ones, **given)


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_samples(dtype: str, filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    expected = sampled(**filters)
    monkeypatch.setitem(globals(), "LOGITS", LOGITS.astype(dtype))
    with jax.enable_x64(True):
        tokens = sampled(**filters)
    assert tokens.dtype == jnp.int32
    np.testing.assert_array_equal(tokens, expected)


def views() -> dict[str, tuple[ops.PageView, int]]:
    """With the number of their tokens."""
    table, lengths = jnp.arange(12).reshape(3, 4), jnp.asarray([13, 5, 8])
    starts = lengths - jnp.asarray([1, 5, 2])
    packed = ops.PageView.table_of(jnp.arange(12), jnp.arange(4) * 4, width=4)
    return {
        "decoding": (ops.PageView.decoding(table, lengths), 3),
        "packed": (ops.PageView.packed(packed, lengths, starts), 8),
        "room": (ops.PageView(table, lengths), 24),
    }


def written(view: ops.PageView, tokens: int) -> Any:
    kv = ops.KVCache.page_major(jnp.asarray(PAGES)).layer(0)
    places = view.positions(tokens), view.slots(tokens, page_size=4)
    qkv = jnp.asarray(np.resize(QKV, (tokens, 8, 8)))
    frequencies = jnp.asarray(100.0 ** -(np.arange(4) / 4), jnp.float32)
    q, cache = ops.rope_and_write(qkv, kv, *places, frequencies)
    out = ops.attention(q, cache.layer(0), view, scale=0.3)
    return view, places, q, cache, out


@pytest.mark.parametrize("which", ["decoding", "packed", "room"])
def test_rows(which: str):
    """What a view gives is taken, and it is what it is in 32 bits."""
    expected = written(*views()[which])
    with jax.enable_x64(True):
        found = written(*views()[which])
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, other in leaves:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_what_int32_does_not_hold_is_no_page():
    with jax.enable_x64(True):
        pages = jnp.asarray([[2**32 + 3, -(2**32) + 3]])
        view = ops.PageView.decoding(pages, jnp.asarray([20]))
    assert np.asarray(view.page_table).tolist() == [[2**31 - 1, -(2**31)]]
