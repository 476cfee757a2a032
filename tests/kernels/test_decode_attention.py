"""`decode_attention`: its definition, its schemes, and who serves it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import limits
from fdjax.kernels.chip import Chip
from fdjax.kernels.decode_attention import (
    OP,
    UnifiedMax,
    config,
    cuda,
    decode_attention,
)
from fdjax.kernels.decode_attention.pallas import call as pallas
from fdjax.kernels.paged import KVCache, PageView
from tests.support.decode_calls import WIDE, structs
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.numerics import assert_close

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
    layer = KVCache.page_major(jnp.asarray(kv)).layer(1)
    held = jnp.asarray(lengths, jnp.int32)
    pages = PageView.decoding(jnp.asarray(table), held)
    return Drawn((jnp.asarray(q), layer, pages), expected, scores)


SINKS = np.array([-1.0, 0.0, 1.0, 3.0], np.float32)


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 3}, {"soft_cap": 2.0}, {"sinks": SINKS}],
)
@pytest.mark.parametrize("unified", [None, WIDE])
def test_definition_is_dense_attention(
    options: dict[str, Any], unified: UnifiedMax | None
):
    drawn = _draw((5, 1, 11, 0, 4), **options)
    with OP.using("reference"):
        out, _ = decode_attention(
            *drawn.operands, scale=0.5, unified=unified, **options
        )
    assert_close(out, drawn.expected, reduction=11)


def test_a_row_is_recomputed_where_its_largest_score_leaves_the_bounds():
    drawn = _draw((5, 1, 11, 0, 4))
    bounds = UnifiedMax(phi=0.5, low=0.2, high=1.5)
    with OP.using("reference"):
        _, counts = decode_attention(*drawn.operands, scale=0.5, unified=bounds)
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
        _, counts = decode_attention(*_draw((5, 1, 11, 0, 4)).operands, scale=0.5)
    assert counts.shape == (5, 2)
    assert counts.dtype == jnp.int32
    assert not counts.any()


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (-61.0, 1.0), (0.0, 60.5)])
def test_bounds_that_float32_does_not_hold_are_errors(low: float, high: float):
    with pytest.raises(ValueError, match=f"low is {low} and high {high}"):
        UnifiedMax(0.0, low, high)


def test_the_limit_keeps_every_sum_finite():
    limit = UnifiedMax(0.0, -60.0, 60.0)
    largest = np.float32(np.exp(limit.high)) * np.float32(limits.MAX_TOKENS * 65504.0)
    assert np.isfinite(largest)
    # The largest weight that is flushed to zero, relative to a row's largest.
    assert np.finfo(np.float32).tiny / np.exp(limit.low) < 2e-12


# --- Who serves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": jnp.float32}, "q is float32; it takes bfloat16 and float16"),
        ({"head_dim": 72}, "head size 72; it takes 64, 80, 96, 128 and 256"),
        ({"head_dim": 256, "group": 9}, "9 query heads of size 256"),
        ({"page_size": 1}, None),
        ({"page_size": 129}, "page size 129; it takes 1 to 128"),
        (
            {"group": 17},
            "34 query heads over 2 key/value heads; it takes 1 to 16",
        ),
        ({"rows": 65_536}, "65536 queries"),
        ({"width": 2**22}, "pages for 67108864 tokens"),
        ({"pages": 2**26}, "2147483648 slots"),
        ({"integer": jnp.int16}, "page_table is int16"),
    ],
)
def test_refuses_what_the_kernel_does_not_take(
    change: dict[str, Any], reason: str | None
):
    actual = cuda.refuse_arguments(structs(**change))
    assert actual is None if reason is None else reason in str(actual)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"head_dim": 80}, "head size 80; it takes 64, 128 and 256"),
        ({"page_size": 8}, "page size 8; it takes 16, 32, 64 and 128"),
        ({"rows": 0}, "0 queries; it takes 1 to 65535"),
        ({"width": 0}, "a page table of width 0"),
        ({"pages": 2**30}, "2147483648 halves of pages"),
        ({"integer": jnp.int16}, "page_table is int16 and lengths int16"),
    ],
)
def test_refuses_what_the_pallas_kernel_does_not_take(
    change: dict[str, Any], reason: str | None
):
    actual = pallas.refuse_arguments(structs(**change))
    assert actual is None if reason is None else reason in str(actual)


@pytest.mark.parametrize("rows", [1, 3, 8, 32, 64, 256, 1000])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("tokens", [0, 16, 1024, 32_768])
def test_the_heuristic_is_a_candidate(rows: int, kv_heads: int, tokens: int):
    sizes = config.Sizes(rows, kv_heads, tokens)
    assert config.heuristic(sizes) in set(config.candidates(sizes))


@pytest.mark.parametrize("rows", range(1, 17))
@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
def test_clusters_of_long_rows_run_at_once(rows: int, num_kv_heads: int):
    chosen = config.heuristic(config.Sizes(rows, num_kv_heads, 32768))
    assert chosen.slots <= Chip().at_once(chosen.splits)
    assert chosen.slots * chosen.splits >= 117


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"),
    [
        (8, 1088, config.LaunchConfig(3, 1, 8, 78)),
        (8, 2048, config.LaunchConfig(2, 1, 16, 66)),
        (5, 2048, config.LaunchConfig(5, 1, 8, 40)),
        (9, 2048, config.LaunchConfig(3, 1, 8, 78)),
    ],
)
def test_two_blocks_that_fill_the_machine_have_16_warps_from_shorter_rows_on(
    rows: int, tokens: int, expected: config.LaunchConfig
):
    assert config.heuristic(config.Sizes(rows, 8, tokens)) == expected


@pytest.mark.parametrize(
    ("head_dim", "group", "page_size", "warps", "in_runs"),
    [
        (128, 4, 16, 16, 16),
        (64, 16, 32, 16, 16),
        (128, 16, 16, 8, 8),
        (96, 1, 16, 8, 8),
        (256, 2, 16, 8, 8),
        (128, 4, 24, 8, 16),
    ],
)
def test_blocks_have_16_warps_where_they_have_the_registers(
    head_dim: int, group: int, page_size: int, warps: int, in_runs: int
):
    assert config.max_warps(head_dim, group, page_size) == warps
    assert config.max_warps(head_dim, group, page_size, in_runs=True) == in_runs


@pytest.mark.parametrize(
    ("head_dim", "group", "fills"),
    [
        (256, 1, True),
        (256, 2, True),
        (128, 9, True),
        (128, 16, True),
        (128, 8, False),
        (64, 16, False),
        (96, 16, False),
    ],
)
def test_which_blocks_fill_an_sm(head_dim: int, group: int, fills: bool):
    assert config.fills_sm(head_dim, group) == fills
    # Others of 8 warps, beams' among them, are cut as they were measured.
    cut = config.heuristic(config.Sizes(4, 8, 2048, 8))
    assert (cut.splits, cut.slots) == (6, 32)


@pytest.mark.parametrize(
    ("pairs", "splits"),
    [(1, 8), (15, 8), (16, 5), (22, 5), (29, 4), (39, 3), (40, 2), (66, 2), (67, 1)],
)
def test_blocks_that_fill_an_sm_run_at_once(pairs: int, splits: int):
    chosen = config.heuristic(config.Sizes(pairs, 1, 2048, 8, alone=True))
    assert (chosen.splits, chosen.warps) == (splits, 8)
    assert chosen.slots == Chip().at_once(splits) >= pairs
    # What hides a beginning and an end on an SM of two blocks, hides none here.
    two = config.heuristic(config.Sizes(pairs, 1, 2048))
    assert chosen.item_tokens > two.item_tokens


def test_pieces_have_room_for_what_they_leave():
    shape = config.LaunchConfig(2, 1, 16, 66).plan_shape(1, 8)
    assert shape.max_pieces == 132
    assert shape.record_floats(4, 128) == 132 * 4 * 132


def test_wrong_arguments_are_value_errors():
    call = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), structs())
    q = call.q.astype(jnp.float16)
    with pytest.raises(ValueError, match="q is float16, kv is bfloat16"):
        decode_attention(q, call.kv, call.pages, scale=1.0)
