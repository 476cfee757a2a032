"""What the public operations say of arguments that they cannot take."""

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


TABLE = jnp.arange(12, dtype=jnp.int32).reshape(ROWS, 4)
LENGTHS = jnp.asarray([13, 5, 8], jnp.int32)
DECODING = ops.PageView.decoding(TABLE, LENGTHS)
CHUNKS = ops.PageView.packed(TABLE, LENGTHS, LENGTHS - jnp.asarray([1, 5, 2]))
PAGES = normal(12, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
KV = ops.KVCache.page_major(PAGES).layer(0)
QUERIES = {"decoding": (normal(ROWS, HEADS, HEAD_DIM), DECODING)}
QUERIES["chunks"] = (normal(8, HEADS, HEAD_DIM), CHUNKS)


def ragged(**changed: Any) -> tuple[jax.Array, jax.Array]:
    """A call whose rows have 1, 5 and 2 new tokens, but for what is changed."""
    given: dict[str, Any] = {
        "q": normal(8, HEADS, HEAD_DIM),
        "k": normal(8, KV_HEADS, HEAD_DIM),
        "v": normal(8, KV_HEADS, HEAD_DIM),
        "kv_cache": normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM),
        "kv_lens": LENGTHS,
        "page_indices": TABLE,
        "cu_q_lens": jnp.asarray([0, 1, 6, 8], jnp.int32),
        "distribution": jnp.asarray([1, 1, 3], jnp.int32),
        "sm_scale": 0.3,
    }
    return ops.ragged_paged_attention(**given | changed)


@pytest.mark.parametrize("rows", QUERIES)
@pytest.mark.parametrize("function", [ops.attention, ops.attention_states])
@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": -1},
        {"window": 2.5},
        {"soft_cap": 0.0},
        {"soft_cap": -1.0},
        {"soft_cap": float("inf")},
    ],
    ids=str,
)
def test_what_stands_for_none_is_left_out(
    function: Any, rows: str, wrong: dict[str, float]
):
    """Handlers take 0 for none, and the definition for what it says."""
    q, pages = QUERIES[rows]
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} is {value}; .*leave it out"):
        function(q, KV, pages, scale=0.3, **wrong)
