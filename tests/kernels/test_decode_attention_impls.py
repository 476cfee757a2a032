"""Every implementation of `decode_attention` against its definition."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import (
    OP,
    DecodeAttention,
    UnifiedMax,
    cases,
    config,
    cpu,
    cuda,
    handler,
    reference,
)
from fdjax.kernels.decode_attention.arguments import Attended
from fdjax.kernels.paged import KVCache, PageView
from tests.support.decode_calls import (
    WIDE,
    poisoned,
    shuffled_table,
    with_array,
    with_pages,
)
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
LLAMA = next(case for case in CI if case.name == "llama3_8b")
SCHEMES = {"synchronised": None, "unified": WIDE}
IMPLS = {"cuda": cuda, "cpu": cpu}
MARKS = {"cuda": (pytest.mark.gpu,), "cpu": ()}
each_scheme = pytest.mark.parametrize(
    "unified", list(SCHEMES.values()), ids=list(SCHEMES)
)
# Cases that the implementation takes; the machine may lack it still.
each_case_taken = pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=MARKS[name], id=f"{name}-{case.name}")
        for name, module in IMPLS.items()
        for case in CI
        if module.refuse_arguments(case.call) is None
    ],
    indirect=["name"],
)

_reference = jax.jit(reference.decode_attention)


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in IMPLS])
def name(request: pytest.FixtureRequest) -> str:
    """An implementation that this machine has."""
    skip_without(handler.NAME, "gpu" if request.param == "cuda" else "cpu")
    return request.param


def _highest(call: DecodeAttention) -> np.ndarray:
    """The largest score of each query head, `[B, Hkv, G]`."""
    found: list[Any] = []
    real = reference.recomputed_rows

    def highest(call: DecodeAttention) -> Any:
        reference.decode_attention(_with(call, unified=WIDE))
        return found[0]

    try:
        reference.recomputed_rows = lambda highest, unified: found.append(highest)
        return np.asarray(jax.jit(highest)(call), np.float64)
    finally:
        reference.recomputed_rows = real


def _with(call: DecodeAttention, **changes: Any) -> DecodeAttention:
    return dataclasses.replace(call, **changes)


def _compiled() -> Callable[[DecodeAttention], Attended]:
    """The operation under a jit of its own, which knows no earlier trace."""
    return jax.jit(functools.partial(OP))


def _served(name: str, call: DecodeAttention) -> Attended:
    with OP.using(name):
        return _compiled()(call)


def _compare(name: str, call: DecodeAttention) -> None:
    expected, counts = _reference(call)
    actual, recomputed = _served(name, call)
    assert_close(actual, expected, reduction=call.max_tokens)
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))


def _gap(highest: np.ndarray) -> UnifiedMax:
    """Bounds that split the rows, as far as can be from any row's largest score."""
    tops = np.sort(highest[np.isfinite(highest)])
    middle = tops[len(tops) // 4 : -len(tops) // 4 or None]
    at = int(np.argmax(np.diff(middle)))
    return UnifiedMax(0.0, -40.0, float((middle[at] + middle[at + 1]) / 2))


@each_case_taken
@pytest.mark.parametrize("scheme", [*SCHEMES, "some_recomputed"])
def test_agrees_with_the_definition(
    name: str, case: Case[DecodeAttention], scheme: str
):
    call = poisoned(cases.arguments(case))
    some = scheme == "some_recomputed"
    unified = _gap(_highest(call)) if some else SCHEMES[scheme]
    _compare(name, _with(call, unified=unified))


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["llama3_8b", "gemma2_9b", "chatglm2_6b_float16"])
def test_every_launch_config_agrees(model: str, monkeypatch: pytest.MonkeyPatch):
    skip_without(handler.NAME, "gpu")
    call = poisoned(cases.arguments(next(c for c in CI if c.name == model), seed=1))
    call = _with(call, unified=_gap(_highest(call)))
    heads = call.kv.cache.num_kv_heads
    every = tuple(config.candidates(config.Sizes(1, heads, 1)))
    step = 2 if model == "llama3_8b" else 5
    chosen = (
        config.heuristic(config.Sizes(rows, heads, tokens))
        for rows in (1, 2, 8, 16, 64, 256)
        for tokens in (128, 1088, 4096, 32_768)
    )
    # With few slots a cluster has several items. No row here is long enough to be cut:
    # those are in test_decode_attention_cuts.py.
    few = tuple(dataclasses.replace(one, slots=3) for one in every[1::step])
    for one in dict.fromkeys((*chosen, *every[::step], *few)):
        monkeypatch.setattr(config, "heuristic", lambda _, one=one: one)
        _compare("cuda", call)


@pytest.mark.parametrize("page_size", [8, 16, 24, 128])
@each_scheme
def test_lengths_around_a_page(name: str, page_size: int, unified: UnifiedMax | None):
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 15, 16, 17, 200]
    case = cases._case(
        "lengths", rows=9, q_heads=8, kv_heads=2, head_dim=128, tokens=200,
        page_size=page_size,
    )  # fmt: skip
    call = cases.arguments(case)
    table, lengths = shuffled_table(call), jnp.asarray(lengths, jnp.int32)
    call = poisoned(with_pages(call, table, lengths))
    _compare(name, _with(call, unified=unified))
    assert not np.asarray(_served(name, call)[0][0], np.float32).any()


@pytest.mark.parametrize("window", [None, 50])
@each_scheme
def test_rows_have_no_more_tokens_than_their_table(
    name: str, window: int | None, unified: UnifiedMax | None
):
    """What follows a row's pages is another row's, or nobody's memory."""
    call = cases.arguments(LLAMA)
    scores = dataclasses.replace(call.scores, window=window)
    call = _with(call, scores=scores, unified=unified)
    room = call.max_tokens
    lengths = jnp.array([2**31 - 1, room + 1, 40, room, 7 * room], jnp.int32)
    clamped = jnp.minimum(lengths, room)
    full = poisoned(with_pages(call, shuffled_table(call), clamped))
    longer = with_pages(full, lengths=lengths)
    _compare(name, longer)
    for one, other in zip(_served(name, longer), _served(name, full), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def _half_pages(call: DecodeAttention) -> DecodeAttention:
    """The same call, each page cut into two of half its size."""
    array = call.kv.cache.array
    pages, layers, two, page_size, heads, head_dim = array.shape
    kv = array.reshape(pages, layers, two, 2, page_size // 2, heads, head_dim)
    kv = jnp.moveaxis(kv, 3, 1).reshape(2 * pages, layers, two, -1, heads, head_dim)
    table = call.pages.page_table
    table = jnp.stack([2 * table, 2 * table + 1], axis=-1)
    layer = KVCache.page_major(kv).layer(call.kv.index)
    return with_pages(_with(call, kv=layer), table.reshape(table.shape[0], -1))


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("window", [None, 37])
@each_scheme
def test_copy_engine_and_threads_agree_bit_for_bit(
    head_dim: int, dtype: Any, window: int | None, unified: UnifiedMax | None
):
    """Pages of 16 tokens come by TMA, those of 8 by threads."""
    case = cases._case(
        "pages", rows=3, q_heads=8, kv_heads=2, head_dim=head_dim, tokens=700,
        page_size=16, window=window, dtype=dtype,
    )  # fmt: skip
    call = cases.arguments(case, seed=2)
    call = poisoned(_with(call, unified=unified))
    whole, _ = _served("cuda", call)
    halves, _ = _served("cuda", _half_pages(call))
    np.testing.assert_array_equal(
        np.asarray(whole, np.float32), np.asarray(halves, np.float32)
    )


@pytest.mark.parametrize("window", [1, 15, 17, 64])
def test_only_the_pages_of_a_window_are_read(name: str, window: int):
    call = cases.arguments(LLAMA)
    call = _with(call, scores=dataclasses.replace(call.scores, window=window))
    table, page_size = call.pages.page_table, call.kv.cache.page_size
    first = jnp.maximum(call.pages.lengths - window, 0)[:, None]
    unseen = jnp.arange(table.shape[1])[None] * page_size + page_size <= first
    # Page ids before the window lead nowhere: a read of one is a fault or NaN.
    unseen_pages = with_pages(call, jnp.where(unseen, 2**31 - 1, table))
    for unified in SCHEMES.values():
        expected, _ = _reference(_with(call, unified=None))
        actual, _ = _served(name, _with(unseen_pages, unified=unified))
        assert_close(actual, expected, reduction=window)


def _spiked(row: int, head: int, token: int, score: float) -> DecodeAttention:
    """The Llama case with one score of one query head set; lengths are all full."""
    call = cases.arguments(LLAMA)
    table = shuffled_table(call, seed=1)
    vector = call.q[row, head].astype(jnp.float32)
    key = vector * score / (jnp.sum(vector**2) * call.scores.scale)
    where = (table[row, token // 16], call.kv.index, 0, token % 16, head // 4)
    array = call.kv.cache.array
    call = with_array(call, array.at[where].set(key.astype(array.dtype)))
    call = with_pages(call, table, jnp.full_like(call.pages.lengths, 200))
    return _with(call, unified=WIDE)


@pytest.mark.parametrize("token", [0, 77, 199])
@pytest.mark.parametrize("score", [45.0, 300.0])
def test_a_score_above_the_bound_recomputes_its_row_alone(
    name: str, token: int, score: float
):
    row, head = 3, 13
    plain = _spiked(row, head, token, 0.0)
    spiked = _spiked(row, head, token, score)
    _compare(name, spiked)
    out, counts = _served(name, spiked)
    expected = np.zeros(counts.shape, np.int32)
    expected[row, head // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)
    # Rows and groups that do not see the key keep their bits.
    before, _ = _served(name, plain)
    same = np.ones(out.shape[:2], bool)
    same[row, head // 4 * 4 : head // 4 * 4 + 4] = False
    np.testing.assert_array_equal(np.asarray(out)[same], np.asarray(before)[same])


def test_neighbours_in_a_recomputed_group_keep_their_bits(name: str):
    row, head = 3, 13
    call = _spiked(row, head, 77, 45.0)
    narrow, counts = _served(name, call)
    wide, none = _served(name, _with(call, unified=UnifiedMax(0.0, -40.0, 60.0)))
    assert int(counts.sum()) == 1
    assert int(none.sum()) == 0
    others = np.ones(narrow.shape[:2], bool)
    others[row, head] = False
    np.testing.assert_array_equal(np.asarray(narrow)[others], np.asarray(wide)[others])
    assert_close(narrow, np.asarray(wide), reduction=200)


def test_a_row_below_the_bound_is_recomputed_alone(name: str):
    call = _spiked(3, 13, 77, 0.0)
    # Among 200 scores of a normal distribution one is above 1; of a zero query, none.
    bounds = UnifiedMax(25.0, -24.0, 40.0)
    call = _with(call, q=call.q.at[2, 30].set(0), unified=bounds)
    _compare(name, call)
    _, counts = _served(name, call)
    expected = np.zeros(counts.shape, np.int32)
    expected[2, 30 // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)


@pytest.mark.parametrize("phi", [-500.0, 500.0])
def test_everything_out_of_bounds_is_the_synchronised_result(name: str, phi: float):
    call = poisoned(cases.arguments(LLAMA))
    out, counts = _served(name, _with(call, unified=UnifiedMax(phi, -40.0, 40.0)))
    expected, _ = _served(name, call)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))
    some = np.asarray(call.pages.lengths)[:, None] > 0
    np.testing.assert_array_equal(np.asarray(counts), np.where(some, 4, 0) + 0 * counts)


@each_scheme
def test_two_runs_are_equal_bit_for_bit(name: str, unified: UnifiedMax | None):
    call = _with(cases.arguments(LLAMA), unified=unified)
    run = _compiled()
    with OP.using(name):
        first, again = run(call), run(call)
    for one, other in itertools.zip_longest(first, again):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_31_elements():
    skip_without(handler.NAME, "gpu")
    shape = (2100, 32, 2, 16, 8, 128)
    assert np.prod(shape[1:]) * (shape[0] - 2) > 2**31
    call = cases.arguments(LLAMA)
    pages = call.kv.cache.array[:2, -1]
    large = jax.jit(lambda pages: jnp.zeros(shape, pages.dtype).at[-2:, 31].set(pages))(
        pages
    )
    small = _with(
        call,
        q=call.q[:1],
        kv=KVCache.page_major(pages[:, None]).layer(0),
        pages=PageView.decoding(
            jnp.array([[0, 1]], jnp.int32), jnp.array([20], jnp.int32)
        ),
    )
    layer = KVCache.page_major(large).layer(31)
    moved = with_pages(small, small.pages.page_table + 2098)
    actual, _ = _served("cuda", _with(moved, kv=layer, unified=WIDE))
    expected, _ = _reference(small)
    assert_close(actual, expected, reduction=20)


def test_no_rows(name: str):
    call = cases.arguments(LLAMA)
    q, pages = jax.tree.map(lambda array: array[:0], (call.q, call.pages))
    out, counts = _served(name, _with(call, q=q, pages=pages))
    assert out.shape == (0, 32, 128)
    assert counts.shape == (0, 8)
