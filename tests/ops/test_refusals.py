"""What the public operations say of values that would be taken, or fail inside JAX."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import ops

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, ROWS, VOCAB = 4, 2, 8, 4, 3, 50
RANDOM = np.random.default_rng(0)
UNTYPED: Any = ops


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


TABLE = jnp.arange(12, dtype=jnp.int32).reshape(ROWS, 4)
LENGTHS = jnp.asarray([13, 5, 8], jnp.int32)
KV = ops.KVCache.page_major(normal(12, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)).layer(0)
CALL = normal(ROWS, HEADS, HEAD_DIM), KV, ops.PageView.decoding(TABLE, LENGTHS)
LOGITS, ONES = normal(ROWS, VOCAB), jnp.ones(ROWS)
KEYS = jnp.arange(2 * ROWS, dtype=jnp.uint32).reshape(ROWS, 2)


def ragged(**changed: Any) -> tuple[jax.Array, jax.Array]:
    given: dict[str, Any] = {
        "q": CALL[0],
        "k": normal(ROWS, KV_HEADS, HEAD_DIM),
        "v": normal(ROWS, KV_HEADS, HEAD_DIM),
        "kv_cache": normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM),
        "kv_lens": LENGTHS,
        "page_indices": TABLE,
        "cu_q_lens": jnp.arange(ROWS + 1, dtype=jnp.int32),
        "distribution": jnp.full(3, ROWS, jnp.int32),
        "sm_scale": 0.3,
    }
    return ops.ragged_paged_attention(**given | changed)


def drawn(logits: jax.Array = LOGITS, **given: Any) -> jax.Array:
    arrays = {"temperature": ONES} | given
    return ops.sample(logits, KEYS, jnp.arange(ROWS), **arrays)


def numbers(last: float) -> jax.Array:
    """In range but for the last."""
    return ONES.at[-1].set(last)


NAN = float("nan")
COMPLEX = jnp.full(HEADS, 1j)
WRONG: dict[str, Callable[[], Any]] = {
    "sample: temperature is nan for a row; give 0, which": lambda: drawn(
        temperature=numbers(NAN)
    ),
    "sample: min_p is 2.0 for a row; give a number from 0": lambda: drawn(
        min_p=numbers(2)
    ),
    "sample: min_p is -1.0 for a row": lambda: drawn(min_p=numbers(-1)),
    "sample: min_p is nan for a row": lambda: drawn(min_p=numbers(NAN)),
    "sample: top_p is 1.5 for a row; give a number from 0 to 1": lambda: drawn(
        top_p=numbers(1.5)
    ),
    "sample: top_p is nan for a row": lambda: drawn(top_p=numbers(NAN)),
    "sample: top_k is -1 for a row; give 0, which is no limit, or more": lambda: drawn(
        top_k=jnp.full(1, -1)
    ),
    "attention_states: tree is uint64; a word has 32 bits, not 64: give it as uint32": (
        lambda: UNTYPED.attention_states(
            *CALL, scale=1.0, tree=np.ones((ROWS, 1), np.uint64)
        )
    ),
    "attention: slopes is complex64; cast it to a type that is floating": lambda: (
        ops.attention(*CALL, COMPLEX, scale=1.0)
    ),
    "attention: sinks is complex64; cast": lambda: ops.attention(
        *CALL, sinks=COMPLEX, scale=1.0
    ),
    "attention_states: slopes is complex64; cast": lambda: ops.attention_states(
        *CALL, COMPLEX, scale=1.0
    ),
    "attention_states: sinks is complex64; cast": lambda: ops.attention_states(
        *CALL, sinks=COMPLEX, scale=1.0
    ),
    "ragged_paged_attention: sinks is complex64; cast": lambda: ragged(sinks=COMPLEX),
    "sample: temperature is complex64; cast": lambda: drawn(temperature=COMPLEX),
    "ragged_paged_attention: kv_cache is (0, 4, 4, 8), which has 0 pages": (
        lambda: ragged(kv_cache=normal(0, PAGE_SIZE, 4, HEAD_DIM))
    ),
    "ragged_paged_attention: pages_per_row is 8589934592, and a table of 3 rows": (
        lambda: ragged(
            cu_kv_lens=jnp.asarray([0, 16, 32, 48]),
            page_indices=TABLE.reshape(-1),
            pages_per_row=2**33,
        )
    ),
    "merge_states: output of one of states is int32; cast it to a type": lambda: (
        ops.merge_states(
            [ops.AttentionState(jnp.ones((1, 1, 1), int), jnp.ones((1, 1)))]
        )
    ),
    "rms_norm: epsilon is -10.0; it must be 0 or more": lambda: ops.rms_norm(
        normal(2, 8), normal(8), epsilon=-10.0
    ),
    "ragged_paged_attention: the cache is (12, 64); expected [P, Z, 2 Hkv, W]": (
        lambda: ragged(kv_cache=normal(12, 64))
    ),
    "ragged_paged_attention: the cache is (12,); expected": lambda: ragged(
        kv_cache=normal(12)
    ),
    "ragged_paged_attention: the cache (12, 4, 3, 8) has 1.5 key/value heads, k": (
        lambda: ragged(kv_cache=normal(12, PAGE_SIZE, 3, HEAD_DIM))
    ),
    "ragged_paged_attention: the cache (12, 4, 8, 8) has 4 key/value heads, k": (
        lambda: ragged(kv_cache=normal(12, PAGE_SIZE, 8, HEAD_DIM))
    ),
    "ragged_paged_attention: the cache (12, 4, 4, 7) has 7 elements a head, k has 8": (
        lambda: ragged(kv_cache=normal(12, PAGE_SIZE, 4, 7))
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_values_and_shapes(message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        WRONG[message]()


def rotated(interleaved: Any) -> Any:
    qkv, places = normal(8, 8, HEAD_DIM), jnp.arange(8, dtype=jnp.int32)
    return ops.rope_and_write(
        qkv, KV, places, places, jnp.ones(4), interleaved=interleaved
    )


MISTAKEN: dict[str, Callable[[], Any]] = {
    "attention: window is an array; give a Python int, which is static": (
        lambda: UNTYPED.attention(*CALL, scale=1.0, window=jnp.int32(3))
    ),
    "ragged_paged_attention: pages_per_row is a bool; give a whole number": (
        lambda: ragged(pages_per_row=True)
    ),
    "attention_states: window is a str; give a Python int": lambda: (
        UNTYPED.attention_states(*CALL, scale=1.0, window="3")
    ),
    "ragged_paged_attention: sliding_window is an array; give a Python int": (
        lambda: ragged(sliding_window=jnp.int32(3))
    ),
    "rope_and_write: interleaved is traced; it must be static: jax.jit has "
    'static_argnames=("interleaved",) for it, or give True or False': (
        lambda: jax.jit(rotated)(True)
    ),
    "rope_and_write: interleaved is an array of (2,); give True or False": (
        lambda: rotated(np.ones(2, bool))
    ),
    "attention: scale is a complex64; give a number": lambda: UNTYPED.attention(
        *CALL, scale=np.complex64(1j)
    ),
    "merge_states: output of one of states is a list; give an array": lambda: (
        UNTYPED.merge_states([ops.AttentionState(*UNTYPED_LISTS)])
    ),
    "merge_states: log_sum of one of states is a list; give an array": lambda: (
        UNTYPED.merge_states([ops.AttentionState(CALL[0], UNTYPED_LISTS[1])])
    ),
}
UNTYPED_LISTS: Any = ([[[1.0]]], [[1.0]])


@pytest.mark.parametrize("message", MISTAKEN)
def test_types(message: str):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        MISTAKEN[message]()


def test_the_ends_of_ranges_are_taken():
    """And what is traced, whose values are not there yet."""
    for name in ("temperature", "top_p", "min_p"):
        for end in (0.0, 1.0):
            drawn(**{name: numbers(end)})
        tokens = jax.jit(lambda n, name=name: drawn(**{name: n}))(numbers(NAN))
        assert ((tokens >= 0) & (tokens < VOCAB)).all()
    drawn(temperature=numbers(float("inf")))


def test_a_window_may_be_a_whole_number_of_numpy():
    window: Any = np.int64(3)
    expected = ops.attention(*CALL, scale=0.3, window=3)
    found = ops.attention(*CALL, scale=0.3, window=window)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_logits_in_8_bits(dtype: Any):
    logits = LOGITS.astype(dtype)
    for draw in (drawn, ops.sample):
        expected = draw(logits.astype(jnp.float32))
        assert draw(logits).tolist() == expected.tolist()
