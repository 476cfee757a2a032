"""Inside `op.batch_invariant()` a row's attention has bits that are its own."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import attention_states, decode_attention, op, prefill_attention
from fdjax.kernels.attention_states import Attention
from fdjax.kernels.decode_attention import DecodeAttention, UnifiedMax
from fdjax.kernels.paged import KVCache, PagedAttention, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.shared_prefix import find_groups, plan_prefixes
from fdjax.kernels.shared_prefix.table import Worth
from tests.support.handlers import skip_without

# Around tiles and pieces, several pieces, more tokens than the most pieces divide.
LENGTHS = (1, 0, 15, 16, 17, 500, 512, 513, 1030, 2200, 9001, 40, 8192, 640, 33, 511)
PROMPTS = (1, 0, 40, 130, 7, 300, 64, 2)  # new tokens of a row
BEFORE = (0, 0, 3000, 17, 129, 0, 1000, 5)  # tokens in front of them


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is static in a call."""

    heads: tuple[int, int] = (8, 4)  # of keys and values; of queries for each
    head_dim: int = 128
    page_size: int = 16
    window: int | None = None
    sinks: bool = False
    unified: UnifiedMax | None = None
    dtype: Any = jnp.bfloat16

    @property
    def scores(self) -> ScoreSpec:
        count = self.heads[0] * self.heads[1]
        sinks = jnp.linspace(-1.0, 2.0, count) if self.sinks else None
        return ScoreSpec(None, self.head_dim**-0.5, None, self.window, sinks)


# Scores of noise lie below the bounds of the last one for many rows, above for some.
SIZES = {
    "llama": Sizes(),
    "mqa_d64": Sizes((1, 8), 64),
    "three_heads": Sizes((3, 2), 128, 8),
    "d256": Sizes((2, 2), 256),
    "slots_of_one": Sizes((2, 4), 64, 1),
    "window": Sizes(window=700, sinks=True),
    "unified": Sizes(unified=UnifiedMax(0.0, -1.0, 3.0)),
    "float16": Sizes(dtype=jnp.float16),
}
each_size = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
PREFILL_SIZES = {n: s for n, s in SIZES.items() if s.page_size >= 8}
each_prefill_size = pytest.mark.parametrize(
    "sizes", PREFILL_SIZES.values(), ids=PREFILL_SIZES
)


def _draw(sizes: Sizes, lengths: tuple[int, ...], queries: int) -> PagedAttention:
    """A call over noise, whose rows have pages of their own in a random order."""
    kv_heads, group = sizes.heads
    needed = [-(-length // sizes.page_size) for length in lengths]
    keys = jax.random.split(jax.random.key(1), 2)
    shape = (sum(needed), 1, 2, sizes.page_size, kv_heads, sizes.head_dim)
    kv = jax.random.normal(keys[0], shape, sizes.dtype)
    q_shape = (queries, kv_heads * group, sizes.head_dim)
    q = 2 * jax.random.normal(keys[1], q_shape, sizes.dtype)
    table = np.full((len(lengths), max(needed) + 3), sum(needed), np.int32)
    pages = np.random.default_rng(1).permutation(sum(needed))
    for row, ends in enumerate(np.cumsum(needed)):
        table[row, : needed[row]] = pages[ends - needed[row] : ends]
    view = PageView.decoding(jnp.asarray(table), jnp.asarray(lengths, jnp.int32))
    cache = KVCache.page_major(kv).layer(0)
    return PagedAttention(q, cache, view, sizes.scores)


def _decode(sizes: Sizes, lengths: tuple[int, ...]) -> DecodeAttention:
    call = _draw(sizes, lengths, len(lengths))
    return DecodeAttention(
        call.q, call.kv, call.pages, call.scores, unified=sizes.unified
    )


def _packed(
    sizes: Sizes, new: tuple[int, ...], before: tuple[int, ...]
) -> PrefillAttention:
    lengths = tuple(map(sum, zip(new, before, strict=True)))
    call = _draw(sizes, lengths, sum(new))
    view = PageView.packed(
        call.pages.page_table, call.pages.lengths, jnp.asarray(before, jnp.int32)
    )
    return PrefillAttention(call.q, call.kv, view, call.scores, unified=sizes.unified)


def _rows(view: PageView, rows: np.ndarray, width: int, **other: Any) -> PageView:
    """Some rows of a view, with a narrower table."""
    return dataclasses.replace(
        view,
        page_table=view.page_table[rows, :width],
        lengths=view.lengths[rows],
        starts=None if view.starts is None else view.starts[rows],
        **other,
    )


def _parts(call: DecodeAttention) -> Iterator[tuple[np.ndarray, DecodeAttention]]:
    """Rows and the call of these: each alone, and all in another order."""
    lengths = np.asarray(call.pages.lengths)
    chosen = [np.array([row]) for row in range(len(lengths))]
    for rows in (*chosen, np.arange(len(lengths))[::-1], np.arange(0, len(lengths), 3)):
        width = max(1, -(-int(lengths[rows].max()) // call.kv.cache.page_size))
        view = _rows(call.pages, rows, width)
        yield rows, dataclasses.replace(call, q=call.q[rows], pages=view)


def _check_decoding(sizes: Sizes, lengths: tuple[int, ...]) -> None:
    call = _decode(sizes, lengths)
    run = jax.jit(decode_attention.OP)
    with op.batch_invariant():
        whole = jax.device_get(run(call))
        for rows, part in _parts(call):
            for expected, actual in zip(whole, jax.device_get(run(part)), strict=True):
                np.testing.assert_array_equal(actual, expected[rows])


def _check_prompts(
    sizes: Sizes,
    run: Callable[[PrefillAttention], Any],
    new: tuple[int, ...],
    before: tuple[int, ...],
) -> None:
    call = _packed(sizes, new, before)
    run = jax.jit(run)
    ends = np.cumsum(new)
    with op.batch_invariant():
        whole = jax.device_get(run(call))
        for row, end in enumerate(ends):
            if not new[row]:
                continue
            width = -(-(new[row] + before[row]) // sizes.page_size)
            firsts = jnp.zeros(1, jnp.int32)
            view = _rows(call.pages, np.array([row]), width, firsts=firsts)
            tokens = slice(end - new[row], end)
            alone = dataclasses.replace(call, q=call.q[tokens], pages=view)
            found = jax.device_get(run(alone))
            for expected, actual in zip(
                jax.tree.leaves(whole), jax.tree.leaves(found), strict=True
            ):
                np.testing.assert_array_equal(actual, expected[tokens])


def _prefilled(call: PrefillAttention) -> Any:
    return prefill_attention.OP(call)[0]


def _states(call: PrefillAttention) -> Any:
    asked = Attention(call.q, call.kv, call.pages, call.scores, tree=None, keys=None)
    return attention_states.OP(asked)


@pytest.mark.gpu
@each_size
def test_of_rows_that_decode_on_a_gpu(sizes: Sizes):
    skip_without("decode_attention", "gpu")
    _check_decoding(sizes, LENGTHS)


@pytest.mark.gpu
@each_prefill_size
def test_of_prompts_on_a_gpu(sizes: Sizes):
    skip_without("prefill_attention", "gpu")
    _check_prompts(sizes, _prefilled, PROMPTS, BEFORE)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [SIZES["llama"], SIZES["mqa_d64"]])
def test_of_states_on_a_gpu(sizes: Sizes):
    skip_without("attention_states", "gpu")
    _check_prompts(sizes, _states, PROMPTS, BEFORE)


@pytest.mark.gpu
@pytest.mark.parametrize("invariant", [False, True])
def test_elsewhere_other_rows_change_some_bits(invariant: bool):
    skip_without("decode_attention", "gpu")
    call = _decode(SIZES["llama"], LENGTHS)
    run = jax.jit(decode_attention.OP)
    alike: list[bool] = []
    with op.batch_invariant() if invariant else nullcontext():
        whole = np.asarray(run(call)[0])
        for rows, part in _parts(call):
            alike.append(np.array_equal(np.asarray(run(part)[0]), whole[rows]))
    assert all(alike) == invariant


@pytest.mark.gpu
def test_who_shares_a_prefix_does_not_matter():
    skip_without("decode_attention", "gpu")
    call = _decode(SIZES["llama"], (4096,) * 8)
    table = jnp.broadcast_to(call.pages.page_table[:1], call.pages.page_table.shape)
    worth = Worth(of_batch=16_384)
    groups = find_groups(np.asarray(table), (4096,) * 8, page_size=16, worth=worth)
    assert groups
    shared = plan_prefixes(groups, rows=8, num_kv_heads=8, group=4)
    pages = dataclasses.replace(call.pages, page_table=table, prefixes=shared)
    run = jax.jit(decode_attention.OP)
    with op.batch_invariant():
        together = np.asarray(run(dataclasses.replace(call, pages=pages))[0])
        view = dataclasses.replace(pages, prefixes=None)
        for row, part in _parts(dataclasses.replace(call, pages=view)):
            np.testing.assert_array_equal(np.asarray(run(part)[0]), together[row])


@pytest.mark.cpu
@pytest.mark.parametrize("sizes", [Sizes((2, 2), 16, 4, dtype=jnp.float32)])
def test_on_a_cpu(sizes: Sizes):
    _check_decoding(sizes, LENGTHS[:10])
    _check_prompts(sizes, _prefilled, PROMPTS, (0, 0, 30, 17, 12, 0, 90, 5))
