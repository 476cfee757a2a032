"""`decode_attention` of rows whose table has slots in place of pages."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.decode_attention import OP, DecodeAttention, UnifiedMax, reference
from fdjax.kernels.decode_attention.cpu import IMPL as CPU
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import prefill_attention
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close
from tests.support.slot_calls import OTHERS, Heads, cache_of, defined, normal

ABSENT = 2**31 - 1
LENGTHS = (5, 1, 300, 0, 47, 129)


def by_slot(cache: KVCache, *, width: int) -> PageView:
    """Each token of `LENGTHS` somewhere; what is absent is named in three ways.

    Of every 32 tokens, the first 16 lie each for itself and the others in order of the
    array's pages: neighbours, if these have as many.
    """
    random, size = np.random.default_rng(2), cache.page_size
    pages = random.permutation(cache.num_pages)[:, None] * size + np.arange(size)
    single, whole = (iter(part.ravel()) for part in np.array_split(pages, 2))
    single = iter(random.permutation([*single]))
    total = cache.num_pages * size
    table = np.full((len(LENGTHS), width), ABSENT, np.int64)
    table[:, ::2], table[:, 1::3] = -1, total
    for row, length in enumerate(LENGTHS):
        for token in range(length):
            table[row, token] = next(whole if token // 16 % 2 else single)
    lengths = jnp.asarray(LENGTHS, jnp.int32)
    view = PageView.decoding(jnp.asarray(table.astype(np.int32)), lengths)
    return dataclasses.replace(view, by_slot=True)


def call_of(
    heads: Heads,
    dtype: Any,
    *,
    page_size: int = 16,
    unified: UnifiedMax | None = None,
    **scores: Any,
) -> DecodeAttention:
    cache = cache_of(heads, dtype, pages=600 // page_size + 1, page_size=page_size)
    q = normal((len(LENGTHS), heads[0], heads[2]), dtype)
    spec = dataclasses.replace(ScoreSpec(None, 0.1, None, None), **scores)
    view = by_slot(cache, width=320)
    return DecodeAttention(q, cache.layer(1), view, spec, unified=unified)


def in_pages(call: DecodeAttention, *, page_size: int = 1) -> DecodeAttention:
    """The same tokens in small pages, in an array of their own."""
    keys, values = call.gathered()
    rows, *sizes = keys.shape[0], *keys.shape[2:]
    halves = jnp.stack([keys, values], axis=2)
    pages = halves.reshape(-1, page_size, 2, *sizes).swapaxes(1, 2)
    array = pages[:, None]
    table = jnp.arange(len(array), dtype=jnp.int32).reshape(rows, -1)
    view = PageView.decoding(table, call.pages.lengths)
    cache = KVCache.page_major(array)
    return dataclasses.replace(call, kv=cache.layer(0), pages=view)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_slots_are_tokens_wherever_they_lie(page_size: int):
    call = call_of((4, 2, 8), jnp.float32, page_size=page_size)
    held = np.asarray(call.kv.cache.array)[:, 1]  # [P, 2, Z, Hkv, D]
    keys, values = call.gathered()
    for row, length in enumerate(LENGTHS):
        for token, slot in enumerate(np.asarray(call.pages.page_table)[row, :length]):
            page, place = divmod(int(slot), page_size)
            np.testing.assert_array_equal(keys[row, token], held[page, 0, place])
            np.testing.assert_array_equal(values[row, token], held[page, 1, place])
    expected, _ = reference.decode_attention(in_pages(call, page_size=page_size))
    actual, _ = reference.decode_attention(call)
    np.testing.assert_array_equal(actual, expected)


def test_slots_of_interleaved_pages_are_found_too():
    call = call_of((4, 2, 8), jnp.float32)
    layer = np.asarray(call.kv.cache.array)[:, 1]
    pairs = layer.transpose(0, 2, 3, 1, 4).reshape(len(layer), 16, 4, 8)
    cache = KVCache.interleaved(jnp.asarray(pairs))
    other = dataclasses.replace(call, kv=cache.layer(0))
    expected, _ = reference.decode_attention(call)
    actual, _ = reference.decode_attention(other)
    np.testing.assert_array_equal(actual, expected)


def test_who_takes_no_slots_says_so():
    call = call_of((4, 2, 8), jnp.float32)
    assert CPU.refuse(call) is not None
    with pytest.raises(ValueError, match=r"the rows' table has slots, .*; give pages"):
        prefill_attention(call.q, call.kv, call.pages, scale=1.0)


# --- On a GPU -------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "dtype"), OTHERS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_kernel_reads_slots(heads: Heads, dtype: Any, page_size: int):
    skip_without("decode_attention", "gpu")
    call = call_of(heads, dtype, page_size=page_size)
    with OP.using("cuda"):
        actual, _ = jax.jit(OP)(call)
    expected, _ = defined(call, reference.decode_attention)
    assert_close(actual, expected, reduction=64)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 2, 5])
def test_the_kernel_reads_small_pages(page_size: int):
    """Pages that hold fewer tokens than TMA takes at a time, or than eight."""
    skip_without("decode_attention", "gpu")
    call = in_pages(call_of((8, 2, 128), jnp.bfloat16), page_size=page_size)
    with OP.using("cuda"):
        actual, _ = jax.jit(OP)(call)
    expected, _ = defined(call, reference.decode_attention)
    assert_close(actual, expected, reduction=64)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"soft_cap": 5.0},
        {"sinks": True},
        {"unified": UnifiedMax(1.0, -40.0, 30.0)},
        {"unified": UnifiedMax(40.0, -3.0, 3.0)},
    ],
    ids=["soft_cap", "sinks", "unified", "unified_outside"],
)
def test_the_kernel_scores_slots_as_the_definition(options: dict[str, Any]):
    skip_without("decode_attention", "gpu")
    if options.get("sinks"):
        options = {"sinks": jnp.linspace(-1.0, 2.0, 8)}
    call = call_of((8, 2, 128), jnp.bfloat16, **options)
    with OP.using("cuda"):
        actual, _ = jax.jit(OP)(call)
    expected, _ = defined(call, reference.decode_attention)
    assert_close(actual, expected, reduction=64)
