"""What the public operations say of arguments that they cannot take."""

import re
from collections.abc import Callable
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


TRACED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attention: scale": ("scale", lambda n: ops.attention(*CALL, scale=n)),
    "attention: window": (
        "window",
        lambda n: ops.attention(*CALL, scale=1.0, window=n),
    ),
    "attention_states: soft_cap": (
        "soft_cap",
        lambda n: ops.attention_states(*CALL, scale=1.0, soft_cap=n),
    ),
    "ragged_paged_attention: sm_scale": ("sm_scale", lambda n: ragged(sm_scale=n)),
    "ragged_paged_attention: sliding_window": (
        "sliding_window",
        lambda n: ragged(sliding_window=n),
    ),
    "ragged_paged_attention: pages_per_row": (
        "pages_per_row",
        lambda n: ragged(pages_per_row=n),
    ),
    "rms_norm: epsilon": (
        "epsilon",
        lambda n: ops.rms_norm(normal(2, 8), normal(8), epsilon=n),
    ),
    "ragged_paged_attention: update_kv_cache": (
        "update_kv_cache",
        lambda n: ragged(update_kv_cache=n),
    ),
}
CALL = QUERIES["decoding"][0], KV, DECODING


@pytest.mark.parametrize("which", TRACED)
def test_what_is_static_is_named_where_it_is_traced(which: str):
    name, function = TRACED[which]
    message = re.escape(f"{which} is traced; it must be static") + f".*{name}"
    for transformed in (jax.jit(function), jax.grad(lambda n: function(n).sum())):
        with pytest.raises(TypeError, match=message):
            transformed(4.0)


def test_a_concrete_number_may_be_an_array():
    """What numpy and JAX compute outside of jit."""
    expected = ops.attention(*CALL, scale=0.5)
    scales: tuple[Any, ...] = (np.float32(0.5), jnp.float32(0.5))
    for scale in scales:
        np.testing.assert_array_equal(ops.attention(*CALL, scale=scale), expected)


def test_a_concrete_boolean_may_be_an_array():
    same = {side: normal(8, KV_HEADS, HEAD_DIM) for side in "kv"}
    cache = normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    false: tuple[Any, ...] = (np.False_, jnp.asarray(False))
    for update in false:
        _, after = ragged(**same, kv_cache=cache, update_kv_cache=update)
        np.testing.assert_array_equal(after, cache)


X, WEIGHT, LOGITS = normal(3, 16), normal(5, 16), normal(4, 50)
KEYS, STEPS, ONES = jnp.zeros((4, 2), jnp.uint32), jnp.arange(4), jnp.ones(4)
QKV, PLACES, TURNS = normal(8, 8, HEAD_DIM), jnp.arange(8, dtype=jnp.int32), jnp.ones(4)
INTEGERS, SHORT = jnp.ones((3, 16), jnp.int32), normal(3)
# What `PageView` itself refuses.
FLOATING = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), DECODING)
BFLOAT16 = {side: jnp.zeros((8, KV_HEADS, HEAD_DIM), jnp.bfloat16) for side in "kv"}

WHOLE: dict[str, jax.Array] = {
    name: jnp.ones(shape, jnp.int32)
    for name, shape in {
        "q": (8, HEADS, HEAD_DIM),
        "k": (8, KV_HEADS, HEAD_DIM),
        "v": (8, KV_HEADS, HEAD_DIM),
        "kv_cache": (12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM),
    }.items()
}


def drawn(logits: Any = LOGITS, keys: Any = KEYS, **given: Any) -> jax.Array:
    arrays = {"steps": STEPS, "temperature": ONES} | given
    return ops.sample(logits, keys, **arrays)


WRONG: dict[str, Callable[[], Any]] = {
    "flat_gemm: x is (16,); expected [M, K]": lambda: ops.flat_gemm(X[0], WEIGHT),
    "flat_gemm: x is (1, 3, 16); expected": lambda: ops.flat_gemm(X[None], WEIGHT),
    "flat_gemm: weight is (16,); expected [N, K]": lambda: ops.flat_gemm(X, WEIGHT[0]),
    "flat_gemm: x has 16 columns, weight 5": lambda: ops.flat_gemm(X, WEIGHT.T),
    "flat_gemm: bias has shape (3,), weight 5 rows": lambda: ops.flat_gemm(
        X, WEIGHT, SHORT
    ),
    "flat_gemm: x is int32; cast": lambda: ops.flat_gemm(INTEGERS, WEIGHT),
    "flat_gemm: weight is int32; cast": lambda: ops.flat_gemm(X, INTEGERS),
    "flat_gemm: out_dtype is int8": lambda: ops.flat_gemm(X, WEIGHT, out_dtype="int8"),
    "rms_norm: scale has shape (3,), x has (3, 16)": lambda: ops.rms_norm(X, SHORT),
    "rms_norm: x is int32; cast": lambda: ops.rms_norm(INTEGERS, X[0]),
    "rms_norm: x is ()": lambda: ops.rms_norm(jnp.float32(1), X[0]),
    "sample: logits is (50,); expected [B, V]": lambda: ops.sample(LOGITS[0]),
    "sample: logits is int32; cast": lambda: ops.sample(INTEGERS),
    "sample: keys has shape (2,), logits": lambda: drawn(keys=KEYS[0]),
    "sample: keys is int32; cast": lambda: drawn(keys=KEYS.astype(jnp.int32)),
    "sample: steps is float32; cast": lambda: drawn(steps=ONES),
    "sample: top_k is float32; cast": lambda: drawn(top_k=ONES),
    "sample: temperature is -1.0 for a row; give 0": lambda: drawn(temperature=-ONES),
    "rope_and_write: qkv is (8, 64); expected [T, H, D]": lambda: ops.rope_and_write(
        QKV.reshape(8, 64), KV, PLACES, PLACES, TURNS
    ),
    "attention: q is bfloat16, kv is float32; cast q to float32": lambda: ops.attention(
        CALL[0].astype(jnp.bfloat16), KV, DECODING, scale=1.0
    ),
    "rope_and_write: qkv is bfloat16, kv is float32": lambda: ops.rope_and_write(
        QKV.astype(jnp.bfloat16), KV, PLACES, PLACES, TURNS
    ),
    "rope_and_write: frequencies is int32; cast": lambda: ops.rope_and_write(
        QKV, KV, PLACES, PLACES, PLACES[:4]
    ),
    "attention: q's head size is 16, kv's 8; give q heads of 8": lambda: ops.attention(
        normal(3, 4, 16), KV, DECODING, scale=1.0
    ),
    "attention: q has 0 heads": lambda: ops.attention(
        normal(3, 0, 8), KV, DECODING, scale=1.0
    ),
    "attention: q is (3, 32); expected [T, Hq, D]": lambda: ops.attention(
        normal(3, 32), KV, DECODING, scale=1.0
    ),
    "attention: 4 queries for 3 rows": lambda: ops.attention(
        normal(4, 4, 8), KV, DECODING, scale=1.0
    ),
    "attention: sinks has shape (3,), q 4 heads": lambda: ops.attention(
        *CALL, sinks=SHORT, scale=1.0
    ),
    "attention: slopes has shape (3,), q 4 heads": lambda: ops.attention(
        *CALL, SHORT, scale=1.0
    ),
    "attention: pages.page_table is float32; cast": lambda: ops.attention(
        CALL[0], KV, FLOATING, scale=1.0
    ),
    "attention_states: sinks has shape (3,)": lambda: ops.attention_states(
        *CALL, sinks=SHORT, scale=1.0
    ),
    "attention_states: tree is int32; cast": lambda: ops.attention_states(
        *CALL, tree=TABLE, scale=1.0
    ),
    "attention_states: keys.end is float32": lambda: ops.attention_states(
        *CALL, keys=ops.KeyRange(LENGTHS, SHORT), scale=1.0
    ),
    "ragged_paged_attention: mode is 'prefill'": lambda: ragged(mode="prefill"),
    "ragged_paged_attention: distribution is (2,)": lambda: ragged(
        distribution=LENGTHS[:2]
    ),
    "ragged_paged_attention: distribution is (4,)": lambda: ragged(
        distribution=PLACES[:4]
    ),
    "ragged_paged_attention: page_indices are (4, 3) for 3 rows": lambda: ragged(
        page_indices=TABLE.reshape(4, 3)
    ),
    "ragged_paged_attention: pages_per_row is 0": lambda: ragged(pages_per_row=0),
    "ragged_paged_attention: k is bfloat16, kv_cache float32": lambda: ragged(
        **BFLOAT16
    ),
    "ragged_paged_attention: q is int32; cast it to a type that is floating": (
        lambda: ragged(**WHOLE)
    ),
    "ragged_paged_attention: the cache is (12, 0, 4, 8); give every axis 1": (
        lambda: ragged(kv_cache=normal(12, 0, 2 * KV_HEADS, HEAD_DIM))
    ),
    "ragged_paged_attention: the cache is (12, 4, 4, 0, 8); give": lambda: ragged(
        kv_cache=normal(12, PAGE_SIZE, 4, 0, HEAD_DIM)
    ),
    "ragged_paged_attention: k is (8, 0, 8); give it 1 head or more": lambda: ragged(
        **dict.fromkeys("kv", normal(8, 0, 8)), kv_cache=normal(12, PAGE_SIZE, 0, 8)
    ),
    "ragged_paged_attention: q is (8, 4, 0); give it 1 head or more": lambda: ragged(
        q=normal(8, 4, 0),
        **dict.fromkeys("kv", normal(8, 2, 0)),
        kv_cache=normal(12, PAGE_SIZE, 4, 0),
    ),
    "ragged_paged_attention: sm_scale is nan; it must be finite": lambda: ragged(
        sm_scale=float("nan")
    ),
    "PageLayout: page_size is 0; it must be 1 or more": lambda: ops.KVCache.page_major(
        normal(12, 1, 2, 0, 2, 8)
    ),
    "PageLayout: num_kv_heads is 0; it must be 1 or more": lambda: (
        ops.KVCache.interleaved(normal(12, 4, 0, 8))
    ),
    "attention: scale is 1e+39; it must be finite in float32": lambda: ops.attention(
        *CALL, scale=1e39
    ),
    "attention: soft_cap is 1e+39; it must be positive and fini": lambda: ops.attention(
        *CALL, scale=1.0, soft_cap=1e39
    ),
    "attention: scale is nan; it must be finite": lambda: ops.attention(
        *CALL, scale=float("nan")
    ),
    "attention_states: scale is inf; it must be finite": lambda: ops.attention_states(
        *CALL, scale=float("inf")
    ),
    "attention: q is int32; cast": lambda: ops.attention(
        jnp.ones((3, 4, 8), jnp.int32), KV, DECODING, scale=1.0
    ),
    "rms_norm: epsilon is nan; it must be finite": lambda: ops.rms_norm(
        X, X[0], epsilon=float("nan")
    ),
    "rope_and_write: qkv is int32; cast": lambda: ops.rope_and_write(
        QKV.astype(jnp.int32), KV, PLACES, PLACES, TURNS
    ),
    "ragged_paged_attention: kv_lens is float32; cast": lambda: ragged(kv_lens=SHORT),
    "ragged_paged_attention: cu_kv_lens is (3,)": lambda: ragged(
        cu_kv_lens=LENGTHS, pages_per_row=4, page_indices=TABLE.reshape(-1)
    ),
    "ragged_paged_attention: sinks has shape (3,), q 4": lambda: ragged(sinks=SHORT),
    "ragged_paged_attention: sliding_window is 0": lambda: ragged(sliding_window=0),
}


@pytest.mark.parametrize("message", WRONG)
def test_values_and_shapes(message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        WRONG[message]()


UNTYPED: Any = ops
MISTAKEN: dict[str, Callable[[], Any]] = {
    "flat_gemm: x is a list; give an array": lambda: UNTYPED.flat_gemm([[1.0]], WEIGHT),
    "flat_gemm: out_dtype is 'x', which is no type; give a floating type, such as": (
        lambda: ops.flat_gemm(X, WEIGHT, out_dtype="x")
    ),
    "rms_norm: scale is None; give an array": lambda: UNTYPED.rms_norm(X, None),
    "sample: temperature is a float; give an array": lambda: drawn(temperature=1.0),
    "sample: keys is an array of typed keys; give their data, jax.random.key_data": (
        lambda: drawn(keys=jax.random.split(jax.random.key(0), 4))
    ),
    "attention: kv is an array; give a layer": lambda: UNTYPED.attention(
        CALL[0], PAGES, DECODING, scale=1.0
    ),
    "attention: kv is a KVCache; give one of its layers": lambda: UNTYPED.attention(
        CALL[0], KV.cache, DECODING, scale=1.0
    ),
    "attention: pages is an array; give a PageView": lambda: UNTYPED.attention(
        CALL[0], KV, TABLE, scale=1.0
    ),
    "attention: scale is None; give a number": lambda: UNTYPED.attention(
        *CALL, scale=None
    ),
    "attention: scale is a str; give a number": lambda: UNTYPED.attention(
        *CALL, scale="0.3"
    ),
    "attention_states: soft_cap is a str; give a number": lambda: (
        UNTYPED.attention_states(*CALL, scale=1.0, soft_cap="x")
    ),
    "rms_norm: epsilon is a str; give a number": lambda: UNTYPED.rms_norm(
        X, X[0], epsilon="1e-6"
    ),
    "ragged_paged_attention: sm_scale is a str; give a number": lambda: ragged(
        sm_scale="0.3"
    ),
    "ragged_paged_attention: soft_cap is a str; give a number": lambda: ragged(
        soft_cap="x"
    ),
    "ragged_paged_attention: pages_per_row is a str; give a whole": lambda: ragged(
        pages_per_row="2"
    ),
    "ragged_paged_attention: pages_per_row is a float; give a whole": lambda: ragged(
        pages_per_row=2.0
    ),
    "attention_states: keys is a tuple; give": lambda: UNTYPED.attention_states(
        *CALL, scale=1.0, keys=(LENGTHS, LENGTHS)
    ),
    "rope_and_write: kv is an array": lambda: UNTYPED.rope_and_write(
        QKV, PAGES, PLACES, PLACES, TURNS
    ),
    "rope_and_write: positions is a list": lambda: UNTYPED.rope_and_write(
        QKV, KV, [0] * 8, PLACES, TURNS
    ),
    "rope_and_write: interleaved is a str; give True or False": lambda: (
        UNTYPED.rope_and_write(QKV, KV, PLACES, PLACES, TURNS, interleaved="no")
    ),
    "ragged_paged_attention: update_kv_cache is None; give True or False": (
        lambda: ragged(update_kv_cache=None)
    ),
    "ragged_paged_attention: update_kv_cache is an int; give": lambda: ragged(
        update_kv_cache=0
    ),
    "ragged_paged_attention: update_kv_cache is an array of (1,)": lambda: ragged(
        update_kv_cache=np.ones(1, bool)
    ),
    "ragged_paged_attention: kv_lens is a list": lambda: ragged(kv_lens=[13, 5, 8]),
    "ragged_paged_attention: k is None; give an array": lambda: ragged(k=None),
    "merge_states: states is a generator": lambda: UNTYPED.merge_states(
        state for state in [ops.attention_states(*CALL, scale=1.0)]
    ),
    "merge_states: one of states is a tuple": lambda: UNTYPED.merge_states([(X, X)]),
    "merge_states: states is an AttentionState": lambda: UNTYPED.merge_states(
        ops.attention_states(*CALL, scale=1.0)
    ),
}


@pytest.mark.parametrize("message", MISTAKEN)
def test_types(message: str):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        MISTAKEN[message]()


def test_numpy_arrays_are_taken():
    given = {
        "kv_lens": np.asarray(LENGTHS),
        "page_indices": np.asarray(TABLE),
        "cu_q_lens": np.asarray([0, 1, 6, 8], np.int32),
        "distribution": np.asarray([1, 1, 3], np.int32),
        "kv_cache": np.zeros((12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM), np.float32),
    }
    given |= {side: np.ones((8, KV_HEADS, HEAD_DIM), np.float32) for side in "kv"}
    given["q"] = np.ones((8, HEADS, HEAD_DIM), np.float32)
    out, _ = ragged(**given)
    expected, _ = ragged(**{name: jnp.asarray(array) for name, array in given.items()})
    np.testing.assert_array_equal(out, expected)


NO_ROWS = {
    "decoding": ops.PageView.decoding(TABLE[:0], LENGTHS[:0]),
    "chunks": ops.PageView.packed(TABLE[:0], LENGTHS[:0], LENGTHS[:0]),
}


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("rows", NO_ROWS)
def test_no_rows(rows: str, tokens: int):
    q = normal(tokens, HEADS, HEAD_DIM)
    pages = NO_ROWS[rows]
    assert (ops.attention(q, KV, pages, scale=0.3) == jnp.zeros_like(q)).all()
    state = ops.attention_states(q, KV, pages, scale=0.3)
    assert (state.output == jnp.zeros_like(q)).all()
    assert (state.log_sum == jnp.full((tokens, HEADS), -jnp.inf)).all()


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("update", [False, True])
def test_ragged_without_rows_or_tokens(rows: int, tokens: int, update: bool):
    kv_cache = normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    given: dict[str, Any] = {
        "q": normal(tokens, HEADS, HEAD_DIM),
        "k": normal(tokens, KV_HEADS, HEAD_DIM),
        "v": normal(tokens, KV_HEADS, HEAD_DIM),
        "kv_cache": kv_cache,
        "kv_lens": LENGTHS[:rows],
        "page_indices": TABLE[:rows],
        "cu_q_lens": jnp.zeros(rows + 1, jnp.int32),
        "distribution": jnp.zeros(3, jnp.int32),
        "update_kv_cache": update,
    }
    out, cache = ragged(**given)
    assert out.shape == given["q"].shape
    assert (out == 0).all()
    np.testing.assert_array_equal(cache, kv_cache)
    with pytest.raises(ValueError, match="ragged_paged_attention: sinks has shape"):
        ragged(**given, sinks=SHORT)


def test_a_cache_of_no_pages():
    empty = ops.KVCache.page_major(PAGES[:0]).layer(0)
    with pytest.raises(ValueError, match="attention: kv has 0 pages; give it one"):
        ops.attention(CALL[0], empty, DECODING, scale=1.0)
    with pytest.raises(ValueError, match=r"ragged_paged_attention: kv_cache is \(0, "):
        ragged(kv_cache=normal(0, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM))
