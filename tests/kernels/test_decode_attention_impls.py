"""Every implementation of `decode_attention` against its definition."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import (
    OP,
    UnifiedMax,
    cases,
    config,
    decode_attention_counted,
    reference,
)
from fdjax.notation import Array
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
LLAMA = next(case for case in CI if case.name == "llama3_8b")
WIDE = UnifiedMax(0.0, -40.0, 40.0)
SCHEMES = {"synchronised": None, "unified": WIDE}
each_impl = pytest.mark.parametrize(
    "name", [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"]
)
each_scheme = pytest.mark.parametrize(
    "unified", list(SCHEMES.values()), ids=list(SCHEMES)
)

_static = ("layer", "scale", "soft_cap", "window", "unified")
_reference = jax.jit(reference.decode_attention, static_argnames=_static)


def _highest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> np.ndarray:
    """The largest score of each query head, `[B, Hkv, G]`."""
    found: list[Any] = []
    real = reference.recomputed_rows
    try:
        reference.recomputed_rows = lambda highest, unified: found.append(highest)
        reference.decode_attention(*args, **kwargs, unified=WIDE)
    finally:
        reference.recomputed_rows = real
    return np.asarray(found[0], np.float64)


def _skip_if_refused(name: str, case: Case = LLAMA) -> None:
    args: tuple[Any, ...] = case.args
    reason = OP.refuse(name, *args, **case.kwargs)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")


def _poisoned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same call, NaN in every slot that holds no token of a row."""
    q, kv, table, lengths, slopes = args
    held = np.zeros((kv.shape[0], kv.shape[3]), bool)
    for pages, length in zip(np.asarray(table), np.asarray(lengths), strict=True):
        for place in range(-(-int(length) // kv.shape[3])):
            held[pages[place], : int(length) - place * kv.shape[3]] = True
    nan = jnp.asarray(jnp.nan, kv.dtype)
    kv = jnp.where(jnp.asarray(held)[:, None, None, :, None, None], kv, nan)
    return q, kv, table, lengths, slopes


def _served(name: str, args: tuple[Any, ...], **kwargs: Any) -> tuple[Array, Array]:
    with OP.using(name):
        return jax.jit(lambda *a: decode_attention_counted(*a, **kwargs))(*args)


def _compare(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], unified: Any
) -> None:
    tokens = args[2].shape[1] * args[1].shape[3]
    expected, counts = _reference(*args, **kwargs, unified=unified)
    actual, recomputed = _served(name, args, **kwargs, unified=unified)
    assert_close(actual, expected, reduction=tokens)
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))


def _gap(highest: np.ndarray) -> UnifiedMax:
    """Bounds that split the rows, as far as can be from any row's largest score."""
    tops = np.sort(highest[np.isfinite(highest)])
    middle = tops[len(tops) // 4 : -len(tops) // 4 or None]
    at = int(np.argmax(np.diff(middle)))
    return UnifiedMax(0.0, -40.0, float((middle[at] + middle[at + 1]) / 2))


@each_impl
@pytest.mark.parametrize("case", CI, ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", [*SCHEMES, "some_recomputed"])
def test_agrees_with_the_definition(name: str, case: Case, scheme: str):
    _skip_if_refused(name, case)
    args = _poisoned(cases.arguments(case))
    kwargs = dict(case.kwargs)
    some = scheme == "some_recomputed"
    unified = _gap(_highest(args, kwargs)) if some else SCHEMES[scheme]
    _compare(name, args, kwargs, unified)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama3_8b", "gemma2_9b", "chatglm2_6b_float16"])
def test_every_cut_agrees(name: str, monkeypatch: pytest.MonkeyPatch):
    case = next(c for c in CI if c.name == name)
    _skip_if_refused("cuda", case)
    args, kwargs = _poisoned(cases.arguments(case, seed=1)), dict(case.kwargs)
    bounds = _gap(_highest(args, kwargs))
    call = config.Call(1, case.args[1].shape[4], 1)
    cuts = tuple(config.candidates(call))
    for cut in cuts[:: 2 if name == "llama3_8b" else 9]:
        monkeypatch.setattr(config, "heuristic", lambda _, cut=cut: cut)
        _compare("cuda", args, kwargs, bounds)


@each_impl
@pytest.mark.parametrize("page_size", [8, 16, 24, 128])
@each_scheme
def test_lengths_around_a_page(name: str, page_size: int, unified: UnifiedMax | None):
    _skip_if_refused(name)
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 15, 16, 17, 200]
    width = -(-200 // page_size)
    case = cases._case(
        "lengths", rows=9, q_heads=8, kv_heads=2, head_dim=128, tokens=200,
        page_size=page_size,
    )  # fmt: skip
    q, kv, _, _, slopes = cases.arguments(case)
    pages = np.random.default_rng(0).permutation(kv.shape[0])[: 9 * width]
    table = jnp.asarray(pages.reshape(9, width), jnp.int32)
    args = _poisoned((q, kv, table, jnp.asarray(lengths, jnp.int32), slopes))
    _compare(name, args, dict(case.kwargs), unified)
    assert not np.asarray(_served(name, args, **case.kwargs)[0][0], np.float32).any()


@each_impl
@pytest.mark.parametrize("window", [1, 15, 17, 64])
def test_only_the_pages_of_a_window_are_read(name: str, window: int):
    _skip_if_refused(name)
    q, kv, table, lengths, slopes = cases.arguments(LLAMA)
    first = jnp.maximum(lengths - window, 0)[:, None]
    place = jnp.arange(table.shape[1])[None] * kv.shape[3]
    unseen = place + kv.shape[3] <= first
    # Page ids before the window lead nowhere: a read of one is a fault or NaN.
    hidden = jnp.where(unseen, 2**31 - 1, table)
    kwargs = {**LLAMA.kwargs, "window": window}
    for unified in SCHEMES.values():
        expected, _ = _reference(q, kv, table, lengths, slopes, **kwargs)
        actual, _ = _served(
            name, (q, kv, hidden, lengths, slopes), **kwargs, unified=unified
        )
        assert_close(actual, expected, reduction=window)


def _spiked(row: int, head: int, token: int, score: float) -> tuple[Any, ...]:
    """The Llama case with one score of one query head set; lengths are all full."""
    q, kv, _, _, slopes = cases.arguments(LLAMA)
    rows, width = LLAMA.args[2].shape
    pages = np.random.default_rng(1).permutation(kv.shape[0])[: rows * width]
    table = jnp.asarray(pages.reshape(rows, width), jnp.int32)
    lengths = jnp.full((rows,), 200, jnp.int32)
    vector = q[row, head].astype(jnp.float32)
    key = vector * score / (jnp.sum(vector**2) * LLAMA.kwargs["scale"])
    where = (table[row, token // 16], LLAMA.kwargs["layer"], 0, token % 16, head // 4)
    return q, kv.at[where].set(key.astype(kv.dtype)), table, lengths, slopes


@each_impl
@pytest.mark.parametrize("token", [0, 77, 199])
@pytest.mark.parametrize("score", [45.0, 300.0])
def test_a_score_above_the_bound_recomputes_its_row_alone(
    name: str, token: int, score: float
):
    _skip_if_refused(name)
    row, head = 3, 13
    plain = _spiked(row, head, token, 0.0)
    spiked = _spiked(row, head, token, score)
    _compare(name, spiked, dict(LLAMA.kwargs), WIDE)
    out, counts = _served(name, spiked, **LLAMA.kwargs, unified=WIDE)
    expected = np.zeros(counts.shape, np.int32)
    expected[row, head // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)
    # Rows and groups that do not see the key keep their bits.
    before, _ = _served(name, plain, **LLAMA.kwargs, unified=WIDE)
    same = np.ones(out.shape[:2], bool)
    same[row, head // 4 * 4 : head // 4 * 4 + 4] = False
    np.testing.assert_array_equal(np.asarray(out)[same], np.asarray(before)[same])


@each_impl
def test_neighbours_in_a_recomputed_group_keep_their_bits(name: str):
    _skip_if_refused(name)
    row, head = 3, 13
    args = _spiked(row, head, 77, 45.0)
    narrow, counts = _served(
        name, args, **LLAMA.kwargs, unified=UnifiedMax(0.0, -40.0, 40.0)
    )
    wide, none = _served(
        name, args, **LLAMA.kwargs, unified=UnifiedMax(0.0, -40.0, 60.0)
    )
    assert int(counts.sum()) == 1
    assert int(none.sum()) == 0
    others = np.ones(narrow.shape[:2], bool)
    others[row, head] = False
    np.testing.assert_array_equal(np.asarray(narrow)[others], np.asarray(wide)[others])
    assert_close(narrow, np.asarray(wide), reduction=200)


@each_impl
def test_a_row_below_the_bound_is_recomputed_alone(name: str):
    _skip_if_refused(name)
    q, kv, table, lengths, slopes = _spiked(3, 13, 77, 0.0)
    args = (q.at[2, 30].set(0), kv, table, lengths, slopes)
    # Among 200 scores of a normal distribution one is above 1; of a zero query, none.
    bounds = UnifiedMax(25.0, -24.0, 40.0)
    _compare(name, args, dict(LLAMA.kwargs), bounds)
    _, counts = _served(name, args, **LLAMA.kwargs, unified=bounds)
    expected = np.zeros(counts.shape, np.int32)
    expected[2, 30 // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)


@each_impl
@pytest.mark.parametrize("phi", [-500.0, 500.0])
def test_everything_out_of_bounds_is_the_synchronised_result(name: str, phi: float):
    _skip_if_refused(name)
    args = _poisoned(cases.arguments(LLAMA))
    out, counts = _served(
        name, args, **LLAMA.kwargs, unified=UnifiedMax(phi, -40.0, 40.0)
    )
    expected, _ = _served(name, args, **LLAMA.kwargs)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))
    some = np.asarray(args[3])[:, None] > 0
    np.testing.assert_array_equal(np.asarray(counts), np.where(some, 4, 0) + 0 * counts)


@each_impl
@each_scheme
def test_two_runs_are_equal_bit_for_bit(name: str, unified: UnifiedMax | None):
    _skip_if_refused(name)
    args = cases.arguments(LLAMA)
    call = jax.jit(
        lambda *a: decode_attention_counted(*a, **LLAMA.kwargs, unified=unified)
    )
    with OP.using(name):
        first, again = call(*args), call(*args)
    for one, other in itertools.zip_longest(first, again):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_31_elements():
    _skip_if_refused("cuda")
    shape = (2100, 32, 2, 16, 8, 128)
    assert np.prod(shape[1:]) * (shape[0] - 2) > 2**31
    q, kv, _, _, _ = cases.arguments(LLAMA)
    pages = kv[:2, -1]
    large = jax.jit(lambda pages: jnp.zeros(shape, pages.dtype).at[-2:, 31].set(pages))(
        pages
    )
    lengths = jnp.array([20], jnp.int32)
    kwargs = {**LLAMA.kwargs, "layer": 31}
    table = jnp.array([[2098, 2099]], jnp.int32)
    actual, _ = _served(
        "cuda", (q[:1], large, table, lengths, None), **kwargs, unified=WIDE
    )
    expected, _ = _reference(
        q[:1], pages[:, None], table - 2098, lengths, None, **{**kwargs, "layer": 0}
    )
    assert_close(actual, expected, reduction=20)


@each_impl
def test_no_rows(name: str):
    _skip_if_refused(name)
    q, kv, table, lengths, slopes = cases.arguments(LLAMA)
    out, counts = _served(
        name, (q[:0], kv, table[:0], lengths[:0], slopes), **LLAMA.kwargs
    )
    assert out.shape == (0, 32, 128)
    assert counts.shape == (0, 8)
