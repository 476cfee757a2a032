"""Every operation's definition in every layout, and what handlers say of others."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import ffi, limits
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import reference as decode
from fdjax.kernels.decode_attention.pallas import attend_with_scores
from fdjax.kernels.paged import (
    KVCache,
    KVLayer,
    PageView,
    ScoreSpec,
)
from fdjax.kernels.prefill_attention import OP as PREFILL
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import reference as prefill
from fdjax.kernels.rope_kv_write import OP as WRITE
from fdjax.kernels.rope_kv_write import RopeKVWrite
from fdjax.kernels.rope_kv_write import reference as rope
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

HEADS, KV_HEADS, HEAD_DIM, WIDTH = 4, 2, 8, 4
LENGTHS = (5, 1, 11, 0, 16, 4)
PLAIN = ScoreSpec(None, 0.5, None, None)
PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 4, 5])


def interleaved(layer: KVLayer, *, width: int) -> KVCache:
    """A layer of a page-major cache as ragged paged attention v3 stores it."""
    array = layer.cache.array[:, layer.index]
    pages, halves, page_size, heads, head_dim = array.shape
    pairs = jnp.moveaxis(array, 1, 3).reshape(pages, page_size, heads, halves, head_dim)
    padding = [(0, 0)] * 4 + [(0, width - head_dim)]
    padded = jnp.pad(pairs, padding, constant_values=jnp.nan)
    return KVCache.interleaved(padded, head_dim=head_dim)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Sequences in pages, NaN in every slot that holds no token."""

    sequences: list[tuple[np.ndarray, np.ndarray]]
    layer: KVLayer
    table: jax.Array
    lengths: jax.Array

    def layouts(self) -> list[KVLayer]:
        """The same keys and values, page-major, interleaved, and padded."""
        others = (interleaved(self.layer, width=width) for width in (HEAD_DIM, 16))
        return [self.layer, *(cache.layer(0) for cache in others)]


def draw(page_size: int) -> Drawn:
    random = np.random.default_rng(5)
    sequences = [
        tuple(random.normal(size=(2, n, KV_HEADS, HEAD_DIM)).astype(np.float32))
        for n in LENGTHS
    ]
    width = -(-max(LENGTHS) // page_size) + 1
    array, table = scatter_pages(
        sequences,
        num_pages=width * len(LENGTHS),
        page_size=page_size,
        num_layers=3,
        layer=1,
        width=width,
        seed=2,
    )
    layer = KVCache.page_major(jnp.asarray(array)).layer(1)
    lengths = jnp.asarray(LENGTHS, jnp.int32)
    return Drawn(sequences, layer, jnp.asarray(table), lengths)


def queries(count: int) -> np.ndarray:
    random = np.random.default_rng(6)
    return random.normal(size=(count, HEADS, HEAD_DIM)).astype(np.float32)


@PAGE_SIZES
def test_decoding_is_dense_attention_in_every_layout(page_size: int):
    drawn, q = draw(page_size), queries(len(LENGTHS))
    expected = np.zeros(q.shape)
    for row, (k, v) in enumerate(drawn.sequences):
        if len(k):
            own = q[row, None]
            expected[row] = dense_attention(own, k, v, start=len(k) - 1, scale=0.5)[0]
    view = PageView.decoding(drawn.table, drawn.lengths)
    run = jax.jit(decode.decode_attention)
    found = [
        run(DecodeAttention(jnp.asarray(q), layer, view, PLAIN, unified=None))[0]
        for layer in drawn.layouts()
    ]
    assert_close(found[0], expected, reduction=16)
    for other in found[1:]:
        np.testing.assert_array_equal(np.asarray(other), np.asarray(found[0]))


@PAGE_SIZES
def test_prompts_are_dense_attention_in_every_layout(page_size: int):
    drawn, starts = draw(page_size), np.array([0, 0, 7, 0, 13, 3], np.int32)
    counts = np.asarray(LENGTHS) - starts
    q, firsts = queries(int(counts.sum()) + 2), np.cumsum(counts) - counts
    view = PageView.packed(drawn.table, drawn.lengths, jnp.asarray(starts))
    run = jax.jit(prefill.prefill_attention)
    found = [
        run(PrefillAttention(jnp.asarray(q), layer, view, PLAIN))[0]
        for layer in drawn.layouts()
    ]
    rows = zip(firsts, counts, starts, drawn.sequences, strict=True)
    for first, count, start, (k, v) in rows:
        own = slice(first, first + count)
        if count:
            expected = dense_attention(q[own], k, v, start=int(start), scale=0.5)
            assert_close(found[0][own], expected, reduction=16)
    for other in found[1:]:
        np.testing.assert_array_equal(np.asarray(other), np.asarray(found[0]))


def write_call(layer: KVLayer, view: PageView) -> RopeKVWrite:
    """One token a row, after those that are there."""
    count = view.num_rows
    qkv = np.random.default_rng(7).normal(size=(count, HEADS + 2 * KV_HEADS, HEAD_DIM))
    return RopeKVWrite(
        jnp.asarray(qkv, jnp.float32),
        layer,
        view.positions(count),
        view.slots(count, page_size=layer.cache.page_size),
        jnp.array([1.0, 0.1]),
        interleaved=False,
    )


@PAGE_SIZES
def test_what_is_written_is_the_same_in_every_layout(page_size: int):
    drawn = draw(page_size)
    view = PageView.decoding(drawn.table, drawn.lengths)
    run = jax.jit(rope.rope_kv_write)
    first, *others = (run(write_call(layer, view)) for layer in drawn.layouts())
    expected = first[1].layer(1)
    for (query, cache), width in zip(others, (HEAD_DIM, 16), strict=True):
        np.testing.assert_array_equal(np.asarray(query), np.asarray(first[0]))
        np.testing.assert_array_equal(
            np.asarray(cache.array),
            np.asarray(interleaved(expected, width=width).array),
        )


GPU_HEADS = 8
DEVICES = pytest.mark.parametrize(
    "platform", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
)


def served_calls(
    page_size: int, head_dim: int, dtype: jax.typing.DTypeLike
) -> tuple[KVLayer, list[tuple[str, Any, Any]]]:
    """A decoding and a ragged call over a page-major layer, NaN where no token is."""
    random, lengths = np.random.default_rng(8), (70, 1, 45, 0, 128, 17)
    shape = (KV_HEADS, head_dim)
    sequences = [tuple(random.normal(size=(2, n, *shape))) for n in lengths]
    array, table = scatter_pages(
        sequences,
        num_pages=200,
        page_size=page_size,
        num_layers=2,
        layer=1,
        width=-(-128 // page_size),
        seed=2,
    )
    layer = KVCache.page_major(jnp.asarray(array, dtype)).layer(1)
    table, tokens = jnp.asarray(table), jnp.asarray(lengths, jnp.int32)
    starts = jnp.array([0, 0, 7, 0, 120, 3], jnp.int32)
    few = jnp.asarray(random.normal(size=(6, GPU_HEADS, head_dim)), dtype)
    many = jnp.asarray(random.normal(size=(140, GPU_HEADS, head_dim)), dtype)
    rows = PageView.packed(table, tokens, starts)
    decoding = PageView.decoding(table, tokens)
    calls = [
        (
            "decode_attention",
            DECODE,
            DecodeAttention(few, layer, decoding, PLAIN, unified=None),
        ),
        ("prefill_attention", PREFILL, PrefillAttention(many, layer, rows, PLAIN)),
    ]
    return layer, calls


@DEVICES
@pytest.mark.parametrize("page_size", [16, 24, 64])
@pytest.mark.parametrize(
    ("head_dim", "width"), [(64, 64), (64, 128), (128, 128), (96, 104)]
)
def test_handlers_read_interleaved_pages_where_they_lie(
    platform: ffi.Platform, page_size: int, head_dim: int, width: int
):
    """The bits are those of the page-major layout: only addresses differ."""
    name = {"cpu": "cpu", "gpu": "cuda"}[platform]
    layer, calls = served_calls(page_size, head_dim, jnp.bfloat16)
    other = interleaved(layer, width=width).layer(0)
    for handler, op, call in calls:
        skip_without(handler, platform)
        with op.using(name):
            own, found = (
                jax.tree.leaves(jax.jit(op)(dataclasses.replace(call, kv=kv)))[0]
                for kv in (layer, other)
            )
        count = 140 if handler == "decode_attention" else 70 + 1 + 38 + 8 + 14
        assert np.isfinite(np.asarray(own[:count], np.float32)).all()
        assert np.asarray(own[:count], np.float32).any()
        np.testing.assert_array_equal(
            np.asarray(found[:count], np.float32), np.asarray(own[:count], np.float32)
        )


@DEVICES
def test_interleaved_pages_are_not_copied(platform: ffi.Platform):
    layer, calls = served_calls(16, 64, jnp.bfloat16)
    other = interleaved(layer, width=128)
    packed = other.with_array(other.array.reshape(200, 16, KV_HEADS, 2, 128))
    for handler, op, call in calls:
        skip_without(handler, platform)

        def run(array: jax.Array, op: Any = op, call: Any = call) -> Any:
            kv = packed.with_array(array).layer(0)
            return op(dataclasses.replace(call, kv=kv))

        compiled = jax.jit(run).lower(packed.array).compile()
        lines = str(compiled.as_text()).splitlines()
        assert any("custom-call(" in line for line in lines)
        assert not [n for n in lines if re.search(r"bf16\[200,.* (copy|fusion)\(", n)]


@pytest.mark.parametrize("name", ["cpu", "cuda", "pallas"])
def test_handlers_refuse_other_layouts(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    monkeypatch.setattr("fdjax.device.platform", lambda: "gpu")
    monkeypatch.setattr("fdjax.device.is_hopper", lambda: True)
    drawn = draw(16)
    own, pairs, _ = drawn.layouts()
    view = PageView.decoding(drawn.table, drawn.lengths)
    q = jnp.zeros((len(LENGTHS), HEADS, HEAD_DIM))
    calls: list[tuple[Any, Any]] = [
        (DECODE, DecodeAttention(q, own, view, PLAIN, unified=None)),
        (PREFILL, PrefillAttention(q, own, view, PLAIN)),
        (WRITE, write_call(own, view)),
    ]
    layout = pairs.cache.layout
    spread = dataclasses.replace(
        layout, page_stride=2 * layout.page_stride, token_stride=2 * layout.token_stride
    )
    gaps = jnp.zeros((pairs.cache.num_pages, spread.page_stride), jnp.float32)
    apart = KVCache(gaps, spread).layer(0)
    for op, call in calls:
        if name not in op.names:
            continue
        reads_pairs = name != "pallas" and op is not WRITE
        for other in (apart,) if reads_pairs else (apart, pairs):
            said = op.refuse(name, dataclasses.replace(call, kv=other))
            assert "'head_stride': 16" in said
            assert "it takes page-major ones, " in said
            assert "'head_stride': 8" in said
        assert "page-major" not in str(op.refuse(name, call))
        taken = op.refuse(name, dataclasses.replace(call, kv=pairs))
        assert ("page-major" in str(taken)) != reads_pairs


def test_cuda_kernels_refuse_heads_that_16_bytes_do_not_divide():
    drawn = draw(16)
    cache = interleaved(drawn.layer, width=12)
    assert limits.refuse_layout(cache, widths=range(8, 64, 8)) == (
        "width 12; it takes 8 to 56 in steps of 8"
    )
    assert limits.refuse_layout(cache, widths=limits.ANY) is None


def test_a_score_function_of_ones_own_wants_our_layout():
    drawn = draw(16)
    other = drawn.layouts()[1]
    view = PageView.decoding(drawn.table, drawn.lengths)
    with pytest.raises(ValueError, match="attend_with_scores: the cache's strides"):
        attend_with_scores(jnp.zeros((6, HEADS, HEAD_DIM)), other, view, scale=1.0)
