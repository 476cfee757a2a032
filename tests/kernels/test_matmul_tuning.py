"""Inflection points, profiles with made-up times, and the timing of GEMMs."""

import json
import pathlib
from collections.abc import Sequence

import jax.numpy as jnp
import pytest

from fdjax.kernels.matmul import config, table, timing, tuning
from fdjax.kernels.matmul.tuning import Point, WeightSpec, inflection_points
from fdjax.kernels.tuning import files
from tests.support.matmul_times import BEST, QUICK_AND_WRONG, MadeUpTimes

M = (1, 2, 4, 8, 16, 32, 64, 128)


def _points(
    gemv: Sequence[float], flat: Sequence[float], xla: Sequence[float]
) -> list[Point]:
    """`gemv` serves up to 4, `flat` up to 64; shorter lists serve no more."""
    curves = dict(zip(tuning.WAYS, (gemv, flat, xla), strict=True))
    return [
        Point(m, {way: us[i] for way, us in curves.items() if i < len(us)})
        for i, m in enumerate(M[: len(xla)])
    ]


@pytest.mark.parametrize(
    ("gemv", "flat", "xla", "expected"),
    [
        # One crossing each.
        ([10, 12, 20], [11] * 7, [14] * 5 + [10.5] * 3, (1, 16)),
        ([10, 10.5, 20], [11] * 7, [14] * 8, (2, 64)),
        # gemv is never best; always.
        ([12, 12, 12], [11] * 7, [14] * 8, (0, 64)),
        ([10, 10, 10], [11] * 7, [14] * 8, (4, 64)),
        # XLA's dot is best everywhere; flat nowhere between gemv and it.
        ([12, 12, 12], [11] * 7, [9] * 8, (0, 0)),
        ([10, 13, 13], [11] * 7, [12] + [9] * 7, (1, 1)),
        # Ties go to gemv before flat, and to flat before XLA's dot.
        ([11, 11, 11], [11] * 7, [11] * 8, (4, 64)),
        ([11, 12, 12], [11] * 7, [11] * 8, (1, 64)),
        # gemv wins again later by a little, and XLA's dot once below: noise.
        ([10, 12, 10.9], [11] * 7, [14] * 8, (1, 64)),
        ([12] * 3, [11, 11, 11, 11.1, 11, 11, 11], [14] * 3 + [11] + [14] * 4, (0, 64)),
        # flat loses once by a little, and the whole beyond is XLA's dot's.
        ([12] * 3, [11] * 7, [14] * 4 + [10] * 4, (0, 8)),
        # Another device: no flat, or neither.
        ([10, 12, 20], [], [11] * 8, (1, 1)),
        ([], [], [11] * 8, (0, 0)),
        # Fewer M than flat serves.
        ([12, 12], [11] * 3, [14] * 3, (0, 4)),
    ],
)
def test_inflection_points(
    gemv: list[float], flat: list[float], xla: list[float], expected: tuple[int, int]
):
    assert inflection_points(_points(gemv, flat, xla)) == expected


def test_the_points_choose():
    assert [tuning.way_of(m, 2, 16) for m in (1, 2, 3, 16, 17)] == [
        *("gemv", "gemv", "flat", "flat", "reference")
    ]


# --- Profiles -------------------------------------------------------------------------


def _profile(**fields: bool) -> tuning.Profile:
    weight = WeightSpec("qkv", 6144, 4096, jnp.bfloat16, **fields)
    return tuning.profile(weight, M, times=MadeUpTimes)


@pytest.mark.usefixtures("on_h200")
def test_a_profile_looks_at_its_best_few_again():
    profile = _profile()
    assert profile.flat[8] == BEST
    assert profile.searched[8][QUICK_AND_WRONG] == 20.0
    every = {config.heuristic(8, 6144, 4096), *config.candidates(8, 6144)}
    assert set(profile.searched[8]) == every
    assert set(profile.flat) == {8, 16, 32, 64}


@pytest.mark.usefixtures("on_h200")
def test_a_profile_has_every_time_and_its_points():
    profile = _profile()
    assert [point.m for point in profile.points] == list(M)
    assert profile.points[0].us == {"gemv": 10.0, "flat": 12.0, "reference": 16.0}
    assert [sorted(point.us) for point in profile.points[3:]] == [
        *[["flat", "reference"]] * 4,
        ["reference"],
    ]
    assert profile.inflection_points == (1, 64)


@pytest.mark.usefixtures("on_h200")
def test_a_gated_weight_gets_tiles_for_both_halves():
    profile = _profile(gated=True)
    assert {flat.tiles for tried in profile.searched.values() for flat in tried} == {2}


@pytest.mark.usefixtures("on_h200")
def test_a_row_is_what_a_table_takes(tmp_path: pathlib.Path):
    profile, path = _profile(), tmp_path / "nvidia-h200.json"
    row = profile.row(measured_with="a test")
    assert (row["measured_with"], row["dtype"]) == ("a test", "bfloat16")
    assert row["us"][0] == {"m": 1, "gemv": 10.0, "flat": 12.0, "reference": 16.0}
    assert {"us": 12.0, **vars(BEST)} in row["searched"]["8"]
    path.write_text(files.to_json(table.updated(path, "NVIDIA H200", [row])))
    assert table.load(path) == {
        (6144, 4096, "bfloat16"): table.Choice(1, 64, profile.flat)
    }
    assert json.loads(path.read_text())["device"] == "NVIDIA H200"


@pytest.mark.usefixtures("on_h200")
def test_what_serves_no_m_is_said():
    assert not tuning.refusals(WeightSpec("qkv", 64, 64, jnp.bfloat16), M)
    refused = tuning.refusals(WeightSpec("head", 60, 64, jnp.bfloat16), M)
    assert set(refused) == {"gemv", "flat"}
    assert "[N, K] is [60, 64]" in refused["flat"]
    assert list(tuning.refusals(WeightSpec("qkv", 64, 64, jnp.bfloat16), [8])) == [
        "gemv"
    ]


# --- Timing ---------------------------------------------------------------------------


def test_the_reference_is_timed_anywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "RUN_US", 100)
    monkeypatch.setattr(timing, "ROTATED_BYTES", 100_000)
    watch = timing.Stopwatch(64, 128, jnp.float32)
    (us,) = watch.microseconds(["reference"], 3, repeats=1, launches=1)
    assert 0 < us < 1e6


def test_copies_are_more_than_a_cache_holds_and_fit_a_device():
    for n, k in ((6144, 4096), (28672, 4096), (128256, 4096), (256, 256)):
        copies = timing.num_copies(n, k)
        assert 2 <= copies <= timing.MAX_COPIES
        assert copies * 2 * n * k <= 2.2e9
    assert timing.num_copies(6144, 4096) * 2 * 6144 * 4096 > 900_000_000
    assert timing.num_rounds(6144, 4096, 19) == 25
