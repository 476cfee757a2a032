"""A cache of keys and values: every layout holds the same, and says what it cannot."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import KVCache, KVLayer, PageLayout
from fdjax.kernels.paged.layout import interleaved, page_major

PAGES, PAGE_SIZE, HEADS, HEAD_DIM = 5, 4, 3, 6
TABLE = jnp.asarray([[3, 0, 4], [1, 2, PAGES]], jnp.int32)

# K beside V in one line of 128, as a kernel for heads of 64 stores them.
BESIDE = PageLayout(1, PAGE_SIZE, HEADS, HEAD_DIM, 4 * 3 * 16, 3 * 16, 16, 8)
# Heads before tokens, with room left over within every axis.
PADDED = PageLayout(1, PAGE_SIZE, HEADS, HEAD_DIM, 640, 16, 160, 8)

SHAPES: dict[str, tuple[int, ...]] = {
    "page_major": (PAGES, 1, 2, PAGE_SIZE, HEADS, HEAD_DIM),
    "interleaved": (PAGES, PAGE_SIZE, 2 * HEADS, HEAD_DIM),
    "packed_and_padded": (PAGES, PAGE_SIZE, HEADS, 2, 8),
    "beside": (PAGES, PAGE_SIZE, HEADS, 16),
    "padded": (PAGES, 640),
}


def empty(name: str) -> KVCache:
    """A cache of one layer that holds NaN, its padding included."""
    array = jnp.full(SHAPES[name], jnp.nan, jnp.float32)
    if name == "page_major":
        return KVCache.page_major(array)
    if name in ("beside", "padded"):
        return KVCache(array, BESIDE if name == "beside" else PADDED)
    return KVCache.interleaved(array, head_dim=HEAD_DIM)


def tokens(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values, no number of which occurs twice."""
    numbers = np.arange(2 * count * HEADS * HEAD_DIM, dtype=np.float32)
    keys, values = numbers.reshape(2, count, HEADS, HEAD_DIM)
    return keys, values


def written(layer: KVLayer, slots: list[int]) -> KVCache:
    keys, values = tokens(len(slots))
    return layer.write(
        jnp.asarray(slots, jnp.int32), jnp.asarray(keys), jnp.asarray(values)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_written_is_gathered_in_order_of_position(name: str):
    keys, values = tokens(PAGES * PAGE_SIZE)
    cache = written(empty(name).layer(0), list(range(PAGES * PAGE_SIZE)))
    assert cache.array.shape == SHAPES[name]
    found = cache.layer(0).gather(TABLE)
    for actual, token in zip(found, (keys, values), strict=True):
        by_page = token.reshape(PAGES, PAGE_SIZE, HEADS, HEAD_DIM)
        rows = by_page[np.minimum(np.asarray(TABLE), PAGES - 1)]
        expected = rows.reshape(2, 3 * PAGE_SIZE, HEADS, HEAD_DIM)
        np.testing.assert_array_equal(np.asarray(actual), expected)


@pytest.mark.parametrize("name", SHAPES)
def test_every_element_is_where_the_strides_say(name: str):
    keys, values = tokens(1)
    cache = written(empty(name).layer(0), [2 * PAGE_SIZE + 3])
    layout, flat = cache.layout, np.asarray(cache.array).ravel()
    expected = np.full(flat.shape, np.nan, np.float32)
    for head in range(HEADS):
        at = 2 * layout.page_stride + 3 * layout.token_stride
        at += head * layout.head_stride
        expected[at : at + HEAD_DIM] = keys[0, head]
        at += layout.value_stride
        expected[at : at + HEAD_DIM] = values[0, head]
    np.testing.assert_array_equal(flat, expected)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("slot", [-1, -(2**31), PAGES * PAGE_SIZE, 2**31 - 1])
def test_slots_outside_the_cache_write_nothing(name: str, slot: int):
    cache = written(empty(name).layer(0), [slot, slot])
    assert np.isnan(np.asarray(cache.array)).all()


@pytest.mark.parametrize("name", SHAPES)
def test_no_tokens_write_nothing(name: str):
    cache = written(empty(name).layer(0), [])
    assert cache.array.shape == SHAPES[name]
    assert np.isnan(np.asarray(cache.array)).all()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "shape",
    [
        (3, 1, HEAD_DIM),
        (1, HEADS, HEAD_DIM),
        (2, HEADS, HEAD_DIM),
        (3, HEADS, 1),
        (3, HEADS, HEAD_DIM - 2),
        (3, 2 * HEADS, HEAD_DIM),
    ],
    ids=str,
)
def test_tokens_of_another_shape_are_not_spread(name: str, shape: tuple[int, ...]):
    """Not one head over all heads, nor one token over all slots."""
    layer, slots = empty(name).layer(0), jnp.arange(3, dtype=jnp.int32)
    right = jnp.zeros((3, HEADS, HEAD_DIM))
    said = re.escape(
        f"is {shape} for 3 slots, and the cache has 3 key/value heads of 6; give "
        "(3, 3, 6)"
    )
    with pytest.raises(ValueError, match=f"^KVLayer: keys {said}"):
        layer.write(slots, jnp.zeros(shape), right)
    with pytest.raises(ValueError, match=f"^KVLayer: values {said}"):
        layer.write(slots, right, jnp.zeros(shape))


def test_tokens_of_other_axes_are_named():
    layer, slots = empty("page_major").layer(0), jnp.arange(3, dtype=jnp.int32)
    keys: Any = jnp.zeros((3, HEADS * HEAD_DIM))
    with pytest.raises(ValueError, match=r"keys is \(3, 18\); expected \[T, Hkv, D\]"):
        layer.write(slots, keys, keys)
    with pytest.raises(ValueError, match=r"slots is \(3, 1\); expected \[T\]"):
        layer.write(slots[:, None], keys, keys)
    keys = [[[0.0] * HEAD_DIM] * HEADS] * 3
    with pytest.raises(TypeError, match="KVLayer: keys is a list; give an array"):
        layer.write(slots, keys, keys)


def test_a_layer_is_a_layer_of_every_page():
    shape = (PAGES, 3, 2, PAGE_SIZE, HEADS, HEAD_DIM)
    random = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    cache = KVCache.page_major(jnp.asarray(random))
    after = np.asarray(written(cache.layer(1), [5, 6]).array)
    np.testing.assert_array_equal(after[:, ::2], random[:, ::2])
    keys, values = tokens(2)
    np.testing.assert_array_equal(after[1, 1, 0, 1:3], keys)
    np.testing.assert_array_equal(after[1, 1, 1, 1:3], values)
    found, _ = cache.layer(2).gather(TABLE[:1])
    expected = random[np.asarray(TABLE[0]), 2, 0].reshape(-1, HEADS, HEAD_DIM)
    np.testing.assert_array_equal(np.asarray(found[0]), expected)


def test_the_array_is_the_one_leaf():
    cache = empty("page_major")
    (leaf,) = jax.tree.leaves(cache)
    assert leaf is cache.array
    assert jax.tree.structure(cache) == jax.tree.structure(empty("page_major"))
    assert jax.tree.structure(cache) != jax.tree.structure(empty("interleaved"))


@pytest.mark.parametrize(
    "sizes", [(3, 16, 8, 128), (1, 1, 1, 1), (2, 1, 4, 8), (2, 4, 1, 8), (1, 2, 2, 2)]
)
def test_page_major_pages_have_their_own_shape(sizes: tuple[int, int, int, int]):
    layers, page_size, heads, head_dim = sizes
    layout = page_major(*sizes)
    assert layout.shape == (layers, 2, page_size, heads, head_dim)
    assert [axis.name for axis in layout.axes] == ["halves", "tokens", "heads"]
    assert layout.as_page_major == layout


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("page_size", [1, 16])
def test_strides_of_ragged_paged_attention(page_size: int, heads: int):
    array = jnp.zeros((PAGES, page_size, heads, 2, 128))
    layout = KVCache.interleaved(array, head_dim=80).layout
    assert layout == interleaved(page_size, heads, 80, width=128)
    assert layout.token_stride == 2 * heads * 128
    assert (layout.head_stride, layout.value_stride) == (256, 128)
    assert layout.as_page_major != layout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_layers": 5}, "a page of 192 elements has 5 layers"),
        ({"token_stride": 50}, "4 tokens at a distance of 50 do not fill .* 192"),
        ({"page_size": 5}, "5 tokens at a distance of 48 do not fill .* 192"),
        ({"num_kv_heads": 4}, "4 heads at a distance of 16 do not fill .* 48"),
        ({"head_stride": 8}, "2 halves at a distance of 8"),
        ({"head_dim": 9}, "the smallest stride is 8; a head has 9 elements, which"),
    ],
)
def test_strides_that_do_not_fit_are_named(change: dict[str, int], said: str):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(BESIDE, **change)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KVCache(jnp.zeros((5, 100)), BESIDE), "100 elements, .* layout 192"),
        (
            lambda: KVCache.page_major(jnp.zeros((5, 1, 1, 4, 3, 6))),
            "expected .P, L, 2",
        ),
        (lambda: KVCache.page_major(jnp.zeros((5, 4, 6, 8))), r"\(5, 4, 6, 8\)"),
        (lambda: KVCache.interleaved(jnp.zeros((5, 4, 3, 8))), r"\(5, 4, 3, 8\)"),
        (
            lambda: KVCache.interleaved(jnp.zeros((5, 4, 6, 8)), head_dim=9),
            r"head_dim is 9, .*\(5, 4, 6, 8\) has heads of width 8; give 8 at most",
        ),
        (
            lambda: KVCache.interleaved(jnp.zeros((5, 4, 6, 8)), head_dim=0),
            "head_dim is 0; it must be 1 or more",
        ),
        (lambda: KVCache.interleaved(jnp.zeros((5, 4))), "expected .P, Z, 2 Hkv"),
        (lambda: empty("page_major").layer(1), "layer 1 of a cache of 1 layers"),
        (lambda: empty("page_major").layer(-1), "layer -1 of a cache of 1 layers"),
    ],
)
def test_arrays_that_do_not_fit_are_named(make: Any, said: str):
    with pytest.raises(ValueError, match=said):
        make()


# What no type checker would let pass.
LIST: Any = [1]
FLOAT: Any = 6.0
TEXT: Any = "0"


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: empty("page_major").layer(FLOAT),
            TypeError,
            "KVLayer: layer is a float; give a whole number",
        ),
        (
            lambda: empty("page_major").layer(TEXT),
            TypeError,
            "KVLayer: layer is a str; give a whole number",
        ),
        (
            lambda: jax.jit(lambda n: empty("page_major").layer(n))(0),
            TypeError,
            "KVLayer: layer is traced; it must be static",
        ),
        (
            lambda: KVLayer(empty("page_major"), 5),
            ValueError,
            "KVLayer: layer 5 of a cache of 1 layers; they are 0 to 0",
        ),
        (
            lambda: KVLayer(LIST, 0),
            TypeError,
            "KVLayer: cache is a list; give a KVCache",
        ),
        (
            lambda: KVCache.interleaved(jnp.zeros((5, 4, 6, 8)), head_dim=FLOAT),
            TypeError,
            "PageLayout: head_dim is a float; give a whole number",
        ),
        (
            lambda: KVCache.page_major(LIST),
            TypeError,
            "KVCache: array is a list; give an array",
        ),
        (
            lambda: KVCache.interleaved(LIST),
            TypeError,
            "KVCache: array is a list; give an array",
        ),
        (
            lambda: KVCache(LIST, BESIDE),
            TypeError,
            "KVCache: array is a list; give an array",
        ),
        (
            lambda: empty("page_major").layer(0).gather(TABLE[0]),
            ValueError,
            "KVLayer: page_table is (3,); expected [B, W]",
        ),
        (
            lambda: empty("page_major").layer(0).gather_slots(TABLE[0]),
            ValueError,
            "KVLayer: slots is (3,); expected [B, N]",
        ),
        (
            lambda: empty("page_major").present(TABLE[0]),
            ValueError,
            "KVCache: table is (3,); expected [B, W]",
        ),
    ],
)
def test_what_is_no_layer_array_or_table_is_named(
    call: Any, error: type[Exception], said: str
):
    with pytest.raises(error, match=f"^{re.escape(said)}"):
        call()


def test_a_layer_may_be_a_whole_number_of_numpy():
    layer: Any = np.int64(0)
    assert empty("page_major").layer(layer).index == 0
