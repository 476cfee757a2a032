"""`attention_states` on a GPU against its definition: rows, parts of keys, trees."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.attention_states import OP, Attention, KeyRange, cuda, reference
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from tests.support.dense_attention import scatter_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

LAYER = 1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a call on a GPU."""

    head_dim: int = 128
    heads: int = 8
    kv_heads: int = 2
    page_size: int = 16


ROWS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all_kinds": ((200, 131, 70, 5, 0), (199, 120, 0, 5, 0)),
    "pieces": ((3000, 700), (2980, 699)),
    "tiles": ((300, 129), (0, 1)),
}
# As many items as give each block of an H200 several, one after the other.
MANY: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "drafts": ((300,) * 64, (296,) * 64),
    "decoding": ((300, 129) * 40, (299, 128) * 40),
    "chunks": ((400,) * 40, (399,) * 32 + (144,) * 8),
}
GPU_MASKS: list[dict[str, Any]] = [
    {},
    {"window": 90},
    {"soft_cap": 5.0},
    {"slopes": np.linspace(0.01, 0.2, 8)},
    {"sinks": np.linspace(-1.0, 2.0, 8)},
]
GPU_SIZES = {
    "d128": Sizes(),
    "d64": Sizes(head_dim=64, page_size=8),
    "d256": Sizes(head_dim=256, kv_heads=1),
    "d80": Sizes(head_dim=80, page_size=12),
    "many": Sizes(heads=32, kv_heads=8),
}


def call_on_gpu(rows: str, sizes: Sizes, dtype: Any, **mask: Any) -> Attention:
    lengths, starts = (ROWS | MANY)[rows]
    random = np.random.default_rng(len(rows))
    heads = (sizes.kv_heads, sizes.head_dim)
    sequences = [
        (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
        for n in lengths
    ]
    width = -(-max(lengths) // sizes.page_size)
    kv, table = scatter_pages(
        sequences,
        num_pages=width * len(lengths) + 3,
        page_size=sizes.page_size,
        num_layers=2,
        layer=LAYER,
        width=width,
        seed=1,
    )
    count = sum(n - s for n, s in zip(lengths, starts, strict=True))
    q = np.full((count + 3, sizes.heads, sizes.head_dim), np.nan)
    q[:count] = random.normal(size=(count, *q.shape[1:]))
    view = PageView.packed(
        *(jnp.asarray(x, jnp.int32) for x in (table, lengths, starts))
    )
    terms = {
        name: jnp.asarray(mask[name], jnp.float32) if name in mask else None
        for name in ("slopes", "sinks")
    }
    scores = ScoreSpec(
        terms["slopes"],
        0.3 * 8 / sizes.head_dim**0.5,
        mask.get("soft_cap"),
        mask.get("window"),
        terms["sinks"],
    )
    cache = KVCache.page_major(jnp.asarray(kv, dtype))
    return Attention(jnp.asarray(q, dtype), cache.layer(LAYER), view, scores)


def assert_found(call: Attention) -> None:
    skip_without("attention_states", "gpu")
    expected = jax.jit(reference.attention_states)(call)
    with OP.using("cuda"):
        actual = jax.jit(OP)(call)
    assert_close(actual.output.astype(call.q.dtype), expected.output, reduction=64)
    log_sums = np.asarray(expected.log_sum)
    nothing = ~np.isfinite(log_sums)
    np.testing.assert_array_equal(np.isneginf(np.asarray(actual.log_sum)), nothing)
    # Of logarithms the absolute error is what counts: weights are off by that factor.
    found = np.asarray(actual.log_sum)[~nothing]
    np.testing.assert_allclose(found, log_sums[~nothing], atol=2e-3, rtol=1e-5)


def trees(call: Attention, words: int) -> jax.Array:
    """Random ancestors; a parent lies before its children, and has all of its own."""
    count = call.q.shape[0]
    places = np.asarray(call.pages.positions(count))
    rows = np.asarray(call.pages.rows(count))
    starts = np.asarray(call.pages.first_positions)
    seen = np.zeros((count, 32 * words), bool)
    random = np.random.default_rng(words)
    for query in range(count):
        index = int(places[query] - starts[rows[query]])
        if 0 < index < 32 * words and random.random() < 0.9:
            parent = int(random.integers(index))
            seen[query] = seen[query - index + parent]
            seen[query, parent] = True
        seen[query, index + 1 :] = random.random(max(32 * words - index - 1, 0)) < 0.5
    bits = seen.reshape(count, words, 32).astype(np.uint64)
    return jnp.asarray((bits << np.arange(32, dtype=np.uint64)).sum(-1), jnp.uint32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("mask", GPU_MASKS, ids=lambda mask: "+".join(mask) or "causal")
@pytest.mark.parametrize("rows", ROWS)
def test_cuda_finds_what_the_definition_does(
    rows: str, mask: dict[str, Any], dtype: Any
):
    assert_found(call_on_gpu(rows, GPU_SIZES["d128"], dtype, **mask))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", GPU_SIZES)
@pytest.mark.parametrize("words", [0, 1, 5])
@pytest.mark.parametrize("rows", ROWS)
def test_cuda_follows_a_tree(rows: str, words: int, sizes: str):
    call = call_on_gpu(rows, GPU_SIZES[sizes], jnp.bfloat16)
    tree = trees(call, words) if words else None
    assert_found(dataclasses.replace(call, tree=tree))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_cuda_attends_to_a_part_of_the_keys(rows: str):
    call = call_on_gpu(rows, GPU_SIZES["d128"], jnp.bfloat16)
    lengths = np.asarray(call.pages.lengths)
    middle = jnp.asarray(lengths // 3, jnp.int32)
    none = jnp.zeros_like(middle)
    for first, end in ((none, middle), (middle, 2 * middle), (2 * middle, none + 9999)):
        assert_found(dataclasses.replace(call, keys=KeyRange(first, end)))
    assert_found(dataclasses.replace(call, keys=KeyRange(middle, middle)))


@pytest.mark.gpu
@pytest.mark.parametrize("with_keys", [8, 3])
@pytest.mark.parametrize("rows", MANY)
def test_a_block_goes_through_tiles_without_keys(rows: str, with_keys: int):
    """Most rows have none in the range, so a block has such tiles between others."""
    call = call_on_gpu(rows, GPU_SIZES["many"], jnp.bfloat16)
    count = call.pages.num_rows
    some = jnp.arange(count) % with_keys == 0
    none = jnp.zeros(count, jnp.int32)
    end = jnp.where(some, 128, 0).astype(jnp.int32)
    assert_found(dataclasses.replace(call, keys=KeyRange(none, end)))
    first = jnp.where(some, 128, 2**20).astype(jnp.int32)
    assert_found(dataclasses.replace(call, keys=KeyRange(first, none + 2**20)))


def test_what_the_kernels_do_not_take_is_said():
    call = call_on_gpu("tiles", GPU_SIZES["d64"], jnp.bfloat16)
    tree = jnp.zeros((call.q.shape[0], 1), jnp.uint32)
    assert cuda.refuse_arguments(dataclasses.replace(call, tree=tree)) is None
    windowed = dataclasses.replace(call.scores, window=9)
    reason = cuda.refuse_arguments(
        dataclasses.replace(call, tree=tree, scores=windowed)
    )
    assert reason is not None
    assert "positions matter" in reason
    wide = dataclasses.replace(call, tree=jnp.tile(tree, (1, 65)))
    assert cuda.refuse_arguments(wide) == "the tree has 65 words a query; it takes 64"
