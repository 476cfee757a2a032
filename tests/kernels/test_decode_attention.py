"""`decode_attention`: its definition, its schemes, and the CUDA kernel against both."""

import dataclasses
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
    cuda,
    decode_attention,
    decode_attention_counted,
    reference,
)
from fdjax.notation import Array
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
LLAMA = next(case for case in CI if case.name == "llama3_8b")
WIDE = UnifiedMax(0.0, -40.0, 40.0)
SCHEMES = {"synchronised": None, "unified": WIDE}

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


# --- The definition -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A small ragged batch, and dense attention of each of its rows."""

    operands: tuple[Any, ...]
    expected: np.ndarray
    scores: list[np.ndarray]


def _draw(lengths: tuple[int, ...], **options: Any) -> Drawn:
    random = np.random.default_rng(3)
    q = random.normal(size=(len(lengths), 4, 8)).astype(np.float32)
    sequences = [
        (random.normal(size=(n, 2, 8)), random.normal(size=(n, 2, 8))) for n in lengths
    ]
    kv, table = scatter_pages(
        sequences, num_pages=9, page_size=4, num_layers=2, layer=1, width=4, seed=1
    )
    expected = np.zeros(q.shape)
    for row, (k, v) in enumerate(sequences):
        if len(k):
            start = len(k) - 1
            expected[row] = dense_attention(
                q[row, None], k, v, start=start, scale=0.5, **options
            )[0]
    scores = [
        np.einsum("hgd,thd->hgt", q[row].reshape(2, 2, 8), k) * 0.5
        for row, (k, _) in enumerate(sequences)
    ]
    operands = map(jnp.asarray, (q, kv, table, np.array(lengths, np.int32)))
    return Drawn(tuple(operands), expected, scores)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"soft_cap": 2.0}])
@pytest.mark.parametrize("unified", [None, WIDE])
def test_definition_is_dense_attention(
    options: dict[str, Any], unified: UnifiedMax | None
):
    drawn = _draw((5, 1, 11, 0, 4), **options)
    with OP.using("reference"):
        out = decode_attention(
            *drawn.operands, layer=1, scale=0.5, unified=unified, **options
        )
    assert_close(out, drawn.expected, reduction=11)


def test_a_row_is_recomputed_where_its_largest_score_leaves_the_bounds():
    drawn = _draw((5, 1, 11, 0, 4))
    bounds = UnifiedMax(phi=0.5, low=0.2, high=1.5)
    with OP.using("reference"):
        _, counts = decode_attention_counted(
            *drawn.operands, layer=1, scale=0.5, unified=bounds
        )
    for row, scores in enumerate(drawn.scores):
        for head in range(2):
            # Of the definition: any score at or above the upper bound, or all of them
            # at or below the lower one; a row without tokens has nothing to repeat.
            tops = scores[head]
            expected = sum(
                bool(s.size) and (bool((s >= 2.0).any()) or bool((s <= 0.7).all()))
                for s in tops
            )
            assert counts[row, head] == expected
    assert 0 < int(counts.sum()) < 16


def test_the_synchronised_scheme_recomputes_nothing():
    with OP.using("reference"):
        _, counts = decode_attention_counted(
            *_draw((5, 1, 11, 0, 4)).operands, layer=1, scale=0.5
        )
    assert counts.shape == (5, 2)
    assert counts.dtype == jnp.int32
    assert not counts.any()


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (-61.0, 1.0), (0.0, 60.5)])
def test_bounds_that_float32_does_not_hold_are_errors(low: float, high: float):
    with pytest.raises(ValueError, match=f"low is {low} and high {high}"):
        UnifiedMax(0.0, low, high)


def test_the_limit_keeps_every_sum_finite():
    limit = UnifiedMax(0.0, -60.0, 60.0)
    largest = np.float32(np.exp(limit.high)) * np.float32(cuda.MAX_TOKENS * 65504.0)
    assert np.isfinite(largest)
    # The largest weight that is flushed to zero, relative to a row's largest.
    assert np.finfo(np.float32).tiny / np.exp(limit.low) < 2e-12


# --- Who serves -----------------------------------------------------------------------


def _structs(
    *,
    dtype: Any = jnp.bfloat16,
    head_dim: int = 128,
    page_size: int = 16,
    group: int = 4,
    rows: int = 2,
    width: int = 4,
    pages: int = 8,
    integer: Any = jnp.int32,
) -> tuple[Any, ...]:
    struct = jax.ShapeDtypeStruct
    return (
        struct((rows, 2 * group, head_dim), dtype),
        struct((pages, 1, 2, page_size, 2, head_dim), dtype),
        struct((rows, width), integer),
        struct((rows,), integer),
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": jnp.float32}, "q is float32"),
        ({"head_dim": 72}, "head size 72"),
        ({"page_size": 7}, "page size 7"),
        ({"page_size": 129}, "page size 129"),
        ({"group": 17}, "34 query heads over 2"),
        ({"rows": 65_536}, "65536 rows"),
        ({"width": 2**22}, "pages for 67108864 tokens"),
        ({"pages": 2**26}, "2147483648 slots"),
        ({"integer": jnp.int16}, "page_table is int16"),
    ],
)
def test_refuses_what_the_kernel_does_not_take(
    change: dict[str, Any], reason: str | None
):
    actual = cuda.refuse_arguments(*_structs(**change))
    assert actual is None if reason is None else reason in str(actual)


@pytest.mark.parametrize("rows", [1, 3, 8, 32, 64, 256, 1000])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("tokens", [0, 16, 1024, 32_768])
def test_the_heuristic_is_a_candidate(rows: int, kv_heads: int, tokens: int):
    call = config.Call(rows, kv_heads, tokens)
    assert config.heuristic(call) in set(config.candidates(call))


def test_wrong_arguments_are_value_errors():
    q, kv, table, lengths = (jnp.zeros(s.shape, s.dtype) for s in _structs())
    with pytest.raises(ValueError, match="q is float16, kv is bfloat16"):
        decode_attention(q.astype(jnp.float16), kv, table, lengths, layer=0, scale=1.0)
    with pytest.raises(ValueError, match="layer 1 of a kv array of 1"):
        decode_attention(q, kv, table, lengths, layer=1, scale=1.0)


# --- The CUDA kernel ------------------------------------------------------------------


def _skip_if_refused(case: Case) -> None:
    args: tuple[Any, ...] = case.args
    reason = OP.refuse("cuda", *args, **case.kwargs)
    if reason is not None:
        pytest.skip(f"cuda: {reason}")


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


def _cuda(args: tuple[Any, ...], **kwargs: Any) -> tuple[Array, Array]:
    with OP.using("cuda"):
        return jax.jit(lambda *a: decode_attention_counted(*a, **kwargs))(*args)


def _compare(args: tuple[Any, ...], kwargs: dict[str, Any], unified: Any) -> None:
    tokens = args[2].shape[1] * args[1].shape[3]
    expected, counts = _reference(*args, **kwargs, unified=unified)
    actual, recomputed = _cuda(args, **kwargs, unified=unified)
    assert_close(actual, expected, reduction=tokens)
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))


def _gap(highest: np.ndarray) -> UnifiedMax:
    """Bounds that split the rows, as far as can be from any row's largest score."""
    tops = np.sort(highest[np.isfinite(highest)])
    middle = tops[len(tops) // 4 : -len(tops) // 4 or None]
    at = int(np.argmax(np.diff(middle)))
    return UnifiedMax(0.0, -40.0, float((middle[at] + middle[at + 1]) / 2))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CI, ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", [*SCHEMES, "some_recomputed"])
def test_agrees_with_the_definition(case: Case, scheme: str):
    _skip_if_refused(case)
    args = _poisoned(cases.arguments(case))
    kwargs = dict(case.kwargs)
    some = scheme == "some_recomputed"
    unified = _gap(_highest(args, kwargs)) if some else SCHEMES[scheme]
    _compare(args, kwargs, unified)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama3_8b", "gemma2_9b", "chatglm2_6b_float16"])
def test_every_cut_agrees(name: str, monkeypatch: pytest.MonkeyPatch):
    case = next(c for c in CI if c.name == name)
    _skip_if_refused(case)
    args, kwargs = _poisoned(cases.arguments(case, seed=1)), dict(case.kwargs)
    bounds = _gap(_highest(args, kwargs))
    call = config.Call(1, case.args[1].shape[4], 1)
    cuts = tuple(config.candidates(call))
    for cut in cuts[:: 2 if name == "llama3_8b" else 9]:
        monkeypatch.setattr(config, "heuristic", lambda _, cut=cut: cut)
        _compare(args, kwargs, bounds)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [8, 16, 24, 128])
@pytest.mark.parametrize("unified", list(SCHEMES.values()), ids=list(SCHEMES))
def test_lengths_around_a_page(page_size: int, unified: UnifiedMax | None):
    _skip_if_refused(LLAMA)
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
    _compare(args, dict(case.kwargs), unified)
    assert not np.asarray(_cuda(args, **case.kwargs)[0][0], np.float32).any()


@pytest.mark.gpu
@pytest.mark.parametrize("window", [1, 15, 17, 64])
def test_only_the_pages_of_a_window_are_read(window: int):
    _skip_if_refused(LLAMA)
    q, kv, table, lengths, slopes = cases.arguments(LLAMA)
    first = jnp.maximum(lengths - window, 0)[:, None]
    place = jnp.arange(table.shape[1])[None] * kv.shape[3]
    unseen = place + kv.shape[3] <= first
    # Page ids before the window lead nowhere: a read of one is a fault or NaN.
    hidden = jnp.where(unseen, 2**31 - 1, table)
    kwargs = {**LLAMA.kwargs, "window": window}
    for unified in SCHEMES.values():
        expected, _ = _reference(q, kv, table, lengths, slopes, **kwargs)
        actual, _ = _cuda((q, kv, hidden, lengths, slopes), **kwargs, unified=unified)
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


@pytest.mark.gpu
@pytest.mark.parametrize("token", [0, 77, 199])
@pytest.mark.parametrize("score", [45.0, 300.0])
def test_a_score_above_the_bound_recomputes_its_row_alone(token: int, score: float):
    _skip_if_refused(LLAMA)
    row, head = 3, 13
    plain = _spiked(row, head, token, 0.0)
    spiked = _spiked(row, head, token, score)
    _compare(spiked, dict(LLAMA.kwargs), WIDE)
    out, counts = _cuda(spiked, **LLAMA.kwargs, unified=WIDE)
    expected = np.zeros(counts.shape, np.int32)
    expected[row, head // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)
    # Rows and groups that do not see the key keep their bits.
    before, _ = _cuda(plain, **LLAMA.kwargs, unified=WIDE)
    same = np.ones(out.shape[:2], bool)
    same[row, head // 4 * 4 : head // 4 * 4 + 4] = False
    np.testing.assert_array_equal(np.asarray(out)[same], np.asarray(before)[same])


@pytest.mark.gpu
def test_neighbours_in_a_recomputed_group_keep_their_bits():
    _skip_if_refused(LLAMA)
    row, head = 3, 13
    args = _spiked(row, head, 77, 45.0)
    narrow, counts = _cuda(args, **LLAMA.kwargs, unified=UnifiedMax(0.0, -40.0, 40.0))
    wide, none = _cuda(args, **LLAMA.kwargs, unified=UnifiedMax(0.0, -40.0, 60.0))
    assert int(counts.sum()) == 1
    assert int(none.sum()) == 0
    others = np.ones(narrow.shape[:2], bool)
    others[row, head] = False
    np.testing.assert_array_equal(np.asarray(narrow)[others], np.asarray(wide)[others])
    assert_close(narrow, np.asarray(wide), reduction=200)


@pytest.mark.gpu
def test_a_row_below_the_bound_is_recomputed_alone():
    _skip_if_refused(LLAMA)
    q, kv, table, lengths, slopes = _spiked(3, 13, 77, 0.0)
    args = (q.at[2, 30].set(0), kv, table, lengths, slopes)
    # Among 200 scores of a normal distribution one is above 1; of a zero query, none.
    bounds = UnifiedMax(25.0, -24.0, 40.0)
    _compare(args, dict(LLAMA.kwargs), bounds)
    _, counts = _cuda(args, **LLAMA.kwargs, unified=bounds)
    expected = np.zeros(counts.shape, np.int32)
    expected[2, 30 // 4] = 1
    np.testing.assert_array_equal(np.asarray(counts), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("phi", [-500.0, 500.0])
def test_everything_out_of_bounds_is_the_synchronised_result(phi: float):
    _skip_if_refused(LLAMA)
    args = _poisoned(cases.arguments(LLAMA))
    out, counts = _cuda(args, **LLAMA.kwargs, unified=UnifiedMax(phi, -40.0, 40.0))
    expected, _ = _cuda(args, **LLAMA.kwargs)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))
    some = np.asarray(args[3])[:, None] > 0
    np.testing.assert_array_equal(np.asarray(counts), np.where(some, 4, 0) + 0 * counts)


@pytest.mark.gpu
@pytest.mark.parametrize("unified", list(SCHEMES.values()), ids=list(SCHEMES))
def test_two_runs_are_equal_bit_for_bit(unified: UnifiedMax | None):
    _skip_if_refused(LLAMA)
    args = cases.arguments(LLAMA)
    call = jax.jit(
        lambda *a: decode_attention_counted(*a, **LLAMA.kwargs, unified=unified)
    )
    with OP.using("cuda"):
        first, again = call(*args), call(*args)
    for one, other in itertools.zip_longest(first, again):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_31_elements():
    _skip_if_refused(LLAMA)
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
    actual, _ = _cuda((q[:1], large, table, lengths, None), **kwargs, unified=WIDE)
    expected, _ = _reference(
        q[:1], pages[:, None], table - 2098, lengths, None, **{**kwargs, "layer": 0}
    )
    assert_close(actual, expected, reduction=20)


@pytest.mark.gpu
def test_no_rows():
    _skip_if_refused(LLAMA)
    q, kv, table, lengths, slopes = cases.arguments(LLAMA)
    out, counts = _cuda((q[:0], kv, table[:0], lengths[:0], slopes), **LLAMA.kwargs)
    assert out.shape == (0, 32, 128)
    assert counts.shape == (0, 8)
