"""Ragged paged attention v3 against dense attention, in every form that it takes."""

import dataclasses
import itertools
import math
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.ops import (
    KVCache,
    PageView,
    attention,
    ragged_paged_attention,
    rope_and_write,
)
from fdjax.ops.ragged_cache import cache_of
from tests.support.dense_attention import dense_attention
from tests.support.numerics import assert_close

HEADS, KV_HEADS, PAGE_SIZE, WIDTH, SCALE = 4, 2, 4, 5, 0.3
RUN = jax.jit(
    ragged_paged_attention,
    static_argnames=(
        "sm_scale",
        "sliding_window",
        "soft_cap",
        "pages_per_row",
        "update_kv_cache",
        "mode",
        "layout",
    ),
)
type Form = Literal["5-D", "4-D", "head-64"]


@dataclasses.dataclass
class Batch:
    """Rows of which the last tokens are new; one more place than there are rows."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    head_dim: int = 8
    form: Form = "5-D"

    def __post_init__(self) -> None:
        random = np.random.default_rng(len(self.lengths))
        heads = (KV_HEADS, self.head_dim)
        self.rows = [
            (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
            for n in self.lengths
        ]
        total = sum(self.counts) + 3
        self.q = random.normal(size=(total, HEADS, self.head_dim)).astype(np.float32)
        pages = random.permutation(WIDTH * len(self.lengths) + 2)
        self.tables = pages[: WIDTH * len(self.lengths)].reshape(-1, WIDTH)
        self.k, self.v = (np.full((total, *heads), np.nan, np.float32) for _ in "kv")
        self.cache = np.full((len(pages), PAGE_SIZE, *self.inner), np.nan, np.float32)
        for row, first in enumerate(self.firsts):
            old, count = self.lengths[row] - self.counts[row], self.counts[row]
            new = slice(first, first + count)
            self.k[new], self.v[new] = (side[old:] for side in self.rows[row])
            self.fill(row, old)

    @property
    def inner(self) -> tuple[int, ...]:
        return {
            "5-D": (KV_HEADS, 2, 128),
            "4-D": (2 * KV_HEADS, self.head_dim),
            "head-64": (1, KV_HEADS, 2 * self.head_dim),
        }[self.form]

    @property
    def firsts(self) -> list[int]:
        return [0, *itertools.accumulate(self.counts)][:-1]

    def fill(self, row: int, count: int) -> None:
        """Puts a row's first tokens into its pages."""
        flat = self.cache.reshape(*self.cache.shape[:2], -1, self.cache.shape[-1])
        for at in range(count):
            slot = flat[self.tables[row, at // PAGE_SIZE], at % PAGE_SIZE]
            for head in range(KV_HEADS):
                key, value = (side[at, head] for side in self.rows[row])
                if self.form == "head-64":
                    slot[head] = np.concatenate([key, value])
                else:
                    slot[2 * head, : self.head_dim] = key
                    slot[2 * head + 1, : self.head_dim] = value

    def arguments(self, **changed: Any) -> dict[str, Any]:
        """With a place for a row that is not there, and what it holds is rubbish."""
        ends = [*self.firsts, sum(self.counts), 77]
        rows = len(self.lengths)
        table = np.vstack([self.tables, np.full((1, WIDTH), 10**6)])
        made = {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "kv_cache": self.cache,
            "kv_lens": np.array([*self.lengths, 50], np.int32),
            "page_indices": table.astype(np.int32),
            "cu_q_lens": np.array(ends, np.int32),
            "distribution": np.array([0, 0, rows], np.int32),
        }
        return {n: jnp.asarray(a) for n, a in (made | changed).items()}

    def check(self, out: Any, **options: Any) -> None:
        for row, (first, count) in enumerate(
            zip(self.firsts, self.counts, strict=True)
        ):
            if count:
                expected = dense_attention(
                    self.q[first : first + count],
                    *self.rows[row],
                    start=self.lengths[row] - count,
                    scale=SCALE,
                    **options,
                )
                assert_close(out[first : first + count], expected, reduction=64)
        assert (out[sum(self.counts) :] == 0).all(), "queries of no row"

    def check_cache(self, cache: Any) -> None:
        """New tokens are where they belong, and nothing else has changed."""
        for row in range(len(self.lengths)):
            self.fill(row, self.lengths[row])
        np.testing.assert_array_equal(np.asarray(cache), self.cache)


LENGTHS, COUNTS = (17, 9, 1, 6), (1, 4, 1, 6)


@pytest.mark.parametrize(
    ("form", "head_dim"), [("5-D", 8), ("5-D", 64), ("4-D", 10), ("head-64", 64)]
)
def test_every_layout(form: Form, head_dim: int):
    batch = Batch(LENGTHS, COUNTS, head_dim=head_dim, form=form)
    out, cache = RUN(**batch.arguments(), sm_scale=SCALE)
    batch.check(out)
    batch.check_cache(cache)


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 3},
        {"soft_cap": 5.0},
        {"sinks": np.linspace(-1, 1, HEADS, dtype=np.float32)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_masks(options: dict[str, Any]):
    batch = Batch(LENGTHS, COUNTS)
    out, _ = RUN(**batch.arguments(), sm_scale=SCALE, **options)
    names = {"sliding_window": "window"}
    batch.check(out, **{names.get(n, n): value for n, value in options.items()})


def test_flat_and_packed_pages_are_the_same():
    batch = Batch(LENGTHS, COUNTS)
    expected, _ = RUN(**batch.arguments(), sm_scale=SCALE)
    table = batch.arguments()["page_indices"]
    flat, _ = RUN(**batch.arguments(page_indices=table.reshape(-1)), sm_scale=SCALE)
    num_pages = [-(-n // PAGE_SIZE) for n in LENGTHS]
    packed = [batch.tables[row, :n] for row, n in enumerate(num_pages)]
    begins = np.cumsum([0, *num_pages, 3]) * PAGE_SIZE
    joined, _ = RUN(
        **batch.arguments(
            page_indices=np.concatenate([*packed, [5, 6]]).astype(np.int32),
            cu_kv_lens=begins.astype(np.int32),
        ),
        pages_per_row=WIDTH,
        sm_scale=SCALE,
    )
    for other in (flat, joined):
        np.testing.assert_array_equal(np.asarray(other), np.asarray(expected))


def test_decoding_only():
    """Rows and queries side by side, with rows that are not there behind them."""
    batch = Batch((17, 9, 1), (1, 1, 1))
    given = batch.arguments(
        q=batch.q[:4],
        k=batch.k[:4],
        v=batch.v[:4],
        cu_q_lens=np.arange(5, dtype=np.int32),
    )
    out, cache = RUN(**given, sm_scale=SCALE, mode="decode")
    batch.check(out)
    batch.check_cache(cache)


def test_a_row_with_more_queries_than_tokens_leaves_the_others_theirs():
    batch = Batch((8, 3, 9), (4, 3, 4))
    for row in range(3):
        batch.fill(row, batch.lengths[row])
    firsts = np.array([0, 4, 204, 208], np.int32)
    q, none = np.zeros((208, HEADS, 8), np.float32), np.zeros((208, KV_HEADS, 8))
    for row in (0, 2):
        q[firsts[row] : firsts[row] + 4] = batch.q[batch.firsts[row] :][:4]
    out, _ = RUN(
        **batch.arguments(
            q=q,
            k=none,
            v=none,
            kv_lens=np.array([8, 3, 9], np.int32),
            cu_q_lens=firsts,
            page_indices=batch.tables.astype(np.int32),
            distribution=np.array([0, 0, 3], np.int32),
        ),
        sm_scale=SCALE,
        update_kv_cache=False,
    )
    for row in (0, 2):
        start, own = batch.lengths[row] - 4, slice(firsts[row], firsts[row] + 4)
        expected = dense_attention(q[own], *batch.rows[row], start=start, scale=SCALE)
        assert_close(out[own], expected, reduction=64)


def test_tokens_before_the_first_row_overwrite_none_of_its_own():
    tokens = jnp.full((3, 1, 8), 7.0)
    _, cache = RUN(
        tokens,
        tokens,
        tokens,
        jnp.zeros((2, 4, 2, 8)),
        kv_lens=jnp.asarray([6]),
        page_indices=jnp.asarray([[0, 1]]),
        cu_q_lens=jnp.asarray([1, 2]),
        distribution=jnp.asarray([0, 0, 1]),
        sm_scale=SCALE,
    )
    written = np.argwhere(np.asarray(cache).any(axis=(2, 3)))
    assert written.tolist() == [[1, 1]]  # position 5


def test_what_is_written_already():
    batch = Batch(LENGTHS, COUNTS)
    for row in range(len(LENGTHS)):
        batch.fill(row, LENGTHS[row])
    given = batch.arguments(k=np.zeros_like(batch.k), v=np.zeros_like(batch.v))
    out, cache = RUN(**given, sm_scale=SCALE, update_kv_cache=False)
    batch.check(out)
    batch.check_cache(cache)


CACHES: dict[str, tuple[tuple[int, ...], int, Literal["interleaved", "beside"]]] = {
    "5-D": ((2, 2, 128), 128, "interleaved"),
    "5-D of heads in a row": ((1, 4, 128), 128, "interleaved"),
    "5-D, packing 1": ((4, 1, 128), 128, "interleaved"),
    "5-D, padded": ((4, 1, 128), 8, "interleaved"),
    "4-D": ((4, 128), 128, "interleaved"),
    "4-D, padded": ((4, 128), 8, "interleaved"),
    "head-64": ((1, 2, 128), 64, "beside"),
    "head-64, packing 1": ((2, 1, 128), 64, "beside"),
}
"""Axes of a token of two heads, elements of a head, and the layout."""


@pytest.mark.parametrize("mode", ["mixed", "decode"])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("form", CACHES)
def test_the_cache_is_updated_in_place(
    form: str, rows: int, mode: Literal["mixed", "decode"]
):
    """Of one token alone, too: in a mixed step of several rows as well."""
    inner, head_dim, layout = CACHES[form]
    cache = jax.ShapeDtypeStruct((65, 16, *inner), jnp.float32)
    sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    tokens = rows if mode == "decode" else max(rows - 1, 1)
    rest = {
        name: jax.ShapeDtypeStruct((tokens, heads, head_dim), jnp.float32)
        for name, heads in sizes.items()
    }
    shapes = {
        "kv_lens": (rows,),
        "page_indices": (rows, 8),
        "cu_q_lens": (rows + 1,),
        "distribution": (3,),
    }
    rest |= {name: jax.ShapeDtypeStruct(n, jnp.int32) for name, n in shapes.items()}
    donated = jax.jit(
        lambda cache, rest: ragged_paged_attention(
            kv_cache=cache, **rest, sm_scale=SCALE, mode=mode, layout=layout
        ),
        donate_argnums=0,
    )
    assert not copies_of(cache, donated.lower(cache, rest).compile())


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("inner", [(4, 32), (2, 2, 32), (4, 1, 32)], ids=str)
def test_a_layer_is_written_in_place(inner: tuple[int, ...], tokens: int):
    cache = jax.ShapeDtypeStruct((65, 16, *inner), jnp.float32)

    def step(array: jax.Array, qkv: jax.Array, slots: jax.Array) -> Any:
        layer = KVCache.interleaved(array).layer(0)
        frequencies = jnp.ones(16, jnp.float32)
        q, kv = rope_and_write(qkv, layer, slots, slots, frequencies)
        pages = PageView.decoding(slots[:, None], slots)
        return attention(q, kv.layer(0), pages, scale=SCALE), kv.array

    donated = jax.jit(step, donate_argnums=0)
    qkv = jax.ShapeDtypeStruct((tokens, 8, 32), jnp.float32)
    slots = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    assert not copies_of(cache, donated.lower(cache, qkv, slots).compile())


def copies_of(cache: jax.ShapeDtypeStruct, compiled: jax.stages.Compiled) -> list[str]:
    """Where a program copies as many numbers as a donated cache has."""
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    assert memory.alias_size_in_bytes == cache.size * cache.dtype.itemsize
    copies = [line for line in text.splitlines() if " copy(" in line]
    sizes = [re.search(r"f32\[([\d,]+)\]", line.split(" copy(")[0]) for line in copies]
    return [
        line
        for line, size in zip(copies, sizes, strict=True)
        if size and math.prod(map(int, size[1].split(","))) >= cache.size
    ]


@pytest.mark.parametrize("form", CACHES)
@pytest.mark.parametrize("slot", [-1, 0, 37, 65 * 16])
def test_one_token_is_written_or_is_not(form: str, slot: int):
    """What is negative or past the end leaves every number as it was."""
    inner, head_dim, layout = CACHES[form]
    array = np.zeros((65, 16, *inner), np.float32)
    cache = cache_of(
        jnp.asarray(array), num_kv_heads=KV_HEADS, head_dim=head_dim, layout=layout
    )
    new = np.ones((1, KV_HEADS, head_dim), np.float32)
    slots = jnp.asarray([slot], jnp.int32)
    kv = cache.layer(0).write(slots, jnp.asarray(new), jnp.asarray(2 * new))
    after = np.array(kv.array)
    if 0 <= slot < 65 * 16:
        token = after[slot // 16, slot % 16]
        assert token.sum() == 3 * new.size
        after[slot // 16, slot % 16] = 0
    np.testing.assert_array_equal(after, array)


def test_errors():
    batch = Batch(LENGTHS, COUNTS)
    for changed, options, message in (
        (
            {"cu_q_lens": np.zeros(3, np.int32)},
            {},
            r"\(3,\) for 5 rows; expected \[6\]",
        ),
        ({"page_indices": np.zeros(7, np.int32)}, {}, "not 1 for each of 5 rows"),
        (
            {"cu_kv_lens": np.zeros(6, np.int32)},
            {},
            "cu_kv_lens is given and pages_per_row is None; say how many",
        ),
        ({}, {"mode": "decode"}, "15 queries for 5 rows"),
        (
            {"kv_cache": np.zeros((9, 4, 3, 2, 128), np.float32)},
            {},
            "has 3 key/value heads, k has 2",
        ),
        (
            {"kv_cache": np.zeros((9, 4, 1, 2, 100), np.float32)},
            {},
            "in 100 elements, and heads have 8; expected 16",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            RUN(**batch.arguments(**changed), sm_scale=SCALE, **options)


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize(
    ("side", "shape"),
    [
        ("k", (14, KV_HEADS, 8)),
        ("k", (1, KV_HEADS, 8)),
        ("k", (15, KV_HEADS, 4)),
        ("v", (1, KV_HEADS, 8)),
        ("v", (15, 1, 8)),
    ],
)
def test_keys_and_values_are_of_the_tokens_of_q(
    side: str, shape: tuple[int, ...], update: bool
):
    wrong = np.zeros(shape, np.float32)
    given = Batch(LENGTHS, COUNTS).arguments(**{side: wrong})
    if shape[0] != 15:  # both alike: a scatter would take them
        given["k"] = given["v"] = jnp.asarray(wrong)
        side = "k"
    message = re.escape(f"{side} is {shape} and q (15, 4, 8)")
    with pytest.raises(ValueError, match=message):
        RUN(**given, sm_scale=SCALE, update_kv_cache=update)


@pytest.mark.parametrize("side", ["q", "k"])
def test_heads_have_an_axis(side: str):
    given = Batch(LENGTHS, COUNTS).arguments(**{side: np.zeros((15, 32), np.float32)})
    with pytest.raises(ValueError, match=rf"{side} is \(15, 32\); expected \[T, H"):
        RUN(**given, sm_scale=SCALE)


@pytest.mark.parametrize("layout", ["interleaved", "beside"])
def test_a_head_of_64_may_lie_in_either_layout(
    layout: Literal["interleaved", "beside"],
):
    """One head padded to two, its value beside its key; or a key, and then a value."""
    random = np.random.default_rng(1)
    q, k, v = (random.normal(size=(5, 1, 64)).astype(np.float32) for _ in "qkv")
    cache = np.zeros((2, 8, 1, 2, 128), np.float32)
    cache[1, :4, 0, 0, :64] = k[:4, 0]
    if layout == "beside":
        cache[1, :4, 0, 0, 64:] = v[:4, 0]
    else:
        cache[1, :4, 0, 1, :64] = v[:4, 0]
    given = {
        "q": q[4:],
        "k": k[4:],
        "v": v[4:],
        "kv_cache": cache,
        "kv_lens": np.array([5], np.int32),
        "page_indices": np.array([[1]], np.int32),
        "cu_q_lens": np.array([0, 1], np.int32),
        "distribution": np.array([0, 0, 1], np.int32),
    }
    out, after = RUN(**given, sm_scale=0.125, layout=layout)
    expected = dense_attention(q[4:], k, v, start=4, scale=0.125)
    assert_close(out, expected, reduction=64)
    pair = [k[4, 0], v[4, 0]]
    where = np.asarray(after)[1, 4, 0]
    found = where[0] if layout == "beside" else where[:, :64].reshape(-1)
    np.testing.assert_array_equal(found, np.concatenate(pair))
    with pytest.raises(ValueError, match=r'may be interleaved.*say layout="interl'):
        RUN(**given, sm_scale=0.125)


def test_heads_beside_values_may_be_padded():
    """Three heads in places of four: no array of three interleaved has that shape."""
    random = np.random.default_rng(1)
    q, k, v = (random.normal(size=(3, 3, 64)).astype(np.float32) for _ in "qkv")
    given = {
        "q": q,
        "k": k,
        "v": v,
        "kv_cache": np.zeros((2, 8, 2, 2, 128), np.float32),
        "kv_lens": np.array([3], np.int32),
        "page_indices": np.array([[1]], np.int32),
        "cu_q_lens": np.array([0, 3], np.int32),
        "distribution": np.array([0, 0, 1], np.int32),
    }
    out, after = RUN(**given, sm_scale=0.125)
    assert_close(out, dense_attention(q, k, v, start=0, scale=0.125), reduction=64)
    found = np.asarray(after)[1, :3].reshape(3, 4, 128)
    np.testing.assert_array_equal(found[:, :3], np.concatenate([k, v], axis=-1))


def test_layouts_that_there_are():
    batch = Batch(LENGTHS, COUNTS)
    for layout, message in (
        ("across", "layout is 'across'; it is one of"),
        ("beside", "has 4 heads, k has 2, padded 2"),
    ):
        with pytest.raises(ValueError, match=message):
            RUN(**batch.arguments(), sm_scale=SCALE, layout=layout)
