"""Calibrations: bounds from ranges, files, and which one a model gets."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from fdjax import ConfigError, UnifiedMax
from fdjax.models.calibration import (
    MARGIN,
    Calibration,
    CheckedText,
    LayerRanges,
    Range,
    bounds_of,
    read_calibration,
    shipped_calibration,
    unified_for,
)

EXAMPLE = Calibration(
    models=("some/model",),
    source="a test",
    coverage=0.999,
    scores=Range(-12.0, 7.5),
    row_maxima=Range(-1.0, 10.0),
    margin=2.0,
    unified=UnifiedMax(-1.0, -13.0, 13.0),
    texts=(CheckedText("a.txt", 100, 0.25, 0.5),),
    layers=(LayerRanges(Range(-12.0, 7.5), Range(-1.0, 10.0)),),
)


def range_of(ends: tuple[float, float]) -> Range:
    return Range(float(ends[0]), float(ends[1]))


@pytest.mark.parametrize(
    ("scores", "row_maxima", "margin", "expected"),
    [
        # Both ranges and the margin fit.
        ((-12, 8), (-1, 10), 2, (-1, -13, 13)),
        ((-12, 8), (-1, 10), 0, (-1, -11, 11)),
        # Only the scores are known.
        ((-12, 8), None, 2, (-2, -12, 12)),
        # The margin is cut where float32 ends.
        ((-50, 54), (-1, 54), 20, (14, -60, 60)),
        # The lower tail of the scores is left out; the margin above stays.
        ((-300, 20), (0, 30), 8, (-22, -60, 60)),
        # The largest scores need all the room there is.
        ((-300, 50), (-60, 60), 8, (0, -60, 60)),
    ],
)
def test_bounds_hold_the_ranges(
    scores: tuple[float, float],
    row_maxima: tuple[float, float] | None,
    margin: float,
    expected: tuple[float, float, float],
):
    rows = None if row_maxima is None else range_of(row_maxima)
    bounds = bounds_of(range_of(scores), rows, margin=float(margin))
    assert bounds == UnifiedMax(*expected)


@pytest.mark.parametrize(
    ("scores", "row_maxima", "reason"),
    [
        (
            (-496.8, 363.5),
            None,
            "scores from -496.8 to 363.5 span 860.3; float32 holds",
        ),
        ((-300, 50), (-60, 61), "largest scores from -60 to 61 span 121"),
    ],
)
def test_a_range_too_wide_is_said(
    scores: tuple[float, float], row_maxima: tuple[float, float] | None, reason: str
):
    rows = None if row_maxima is None else range_of(row_maxima)
    bounds = bounds_of(range_of(scores), rows, margin=0.0)
    assert isinstance(bounds, str)
    assert reason in bounds


@pytest.mark.parametrize(
    "calibration",
    [
        EXAMPLE,
        dataclasses.replace(EXAMPLE, unified=None, reason="too wide"),
        Calibration(("a", "b"), "a paper", 0.99, Range(-1.0, 2.0)),
    ],
)
def test_a_file_holds_it_all(tmp_path: pathlib.Path, calibration: Calibration):
    path = tmp_path / "softmax.json"
    path.write_text(calibration.to_json())
    assert read_calibration(path) == calibration
    assert json.loads(path.read_text())["scheme"] == calibration.scheme


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phi": None}, "float"),
        ({"phi": "much"}, "much"),
        ({"phi": float("inf")}, "phi is inf"),
        ({"low": -61.0}, "low is -61"),
        ({"scheme": "fast"}, "scheme is 'fast'"),
        ({"scores": {"low": 1.0}}, "high"),
        ({"models": "some/model"}, "models is 'some/model'"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_files_are_named(
    tmp_path: pathlib.Path, change: dict[str, Any], message: str
):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(json.loads(EXAMPLE.to_json()) | change))
    with pytest.raises(ConfigError, match=r"wrong\.json cannot be read") as raised:
        read_calibration(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["phi", "scheme", "models", "coverage", "scores"])
def test_a_missing_field_is_named(tmp_path: pathlib.Path, name: str):
    path = tmp_path / "short.json"
    fields = json.loads(EXAMPLE.to_json())
    del fields[name]
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=name):
        read_calibration(path)


# Published: FlashDecoding++, figure 5, and FlashDecoding++Next, section VI-C.
@pytest.mark.parametrize(
    ("model", "scores", "coverage"),
    [
        ("meta-llama/Llama-2-7b-hf", (-16.8, 6.5), 0.9999),
        ("THUDM/chatglm2-6b", (-10.5, 13.7), 0.9999),
        ("facebook/opt-6.7b", (-496.8, 363.5), 0.9999),
        ("codellama/CodeLlama-7b-hf", (-0.25, 17.6), 0.99),
        ("lmsys/vicuna-7b-v1.5", (-0.8, 9.8), 0.99),
    ],
)
def test_published_ranges_ship(
    model: str, scores: tuple[float, float], coverage: float
):
    shipped = shipped_calibration(model.upper())
    assert shipped is not None
    assert shipped.source.startswith("published: FlashDecoding++")
    assert shipped.scores == Range(*scores)
    assert shipped.coverage == coverage
    bounds = bounds_of(shipped.scores, None, margin=MARGIN)
    assert bounds == (shipped.unified or shipped.reason)


def test_opt_is_synchronised():
    shipped = shipped_calibration("facebook/opt-6.7b")
    assert shipped is not None
    assert shipped.scheme == "synchronised"
    assert shipped.reason is not None and "860.3" in shipped.reason


def test_the_small_model_is_measured():
    shipped = shipped_calibration("tales-5m")
    assert shipped is not None and shipped.row_maxima is not None
    bounds = bounds_of(shipped.scores, shipped.row_maxima, margin=shipped.margin)
    assert bounds == shipped.unified
    assert len(shipped.layers) == 6
    # Another text than that it was calibrated with, and hardly a row computed again.
    assert len(shipped.texts) == 2
    for text in shipped.texts:
        assert text.tokens > 200_000
        assert text.recomputed is not None and text.recomputed < 1e-4


def test_other_models_have_none():
    assert shipped_calibration("meta-llama/Llama-2-70b-hf") is None


def test_what_a_user_says_wins(tmp_path: pathlib.Path):
    mine, path = UnifiedMax(1.0, -2.0, 3.0), tmp_path / "mine.json"
    path.write_text(EXAMPLE.to_json())
    assert unified_for(mine, "tales-5m", tmp_path) == mine
    assert unified_for("synchronised", "tales-5m", tmp_path) is None
    assert unified_for(path, "tales-5m", tmp_path) == EXAMPLE.unified
    assert unified_for(str(path), "tales-5m", tmp_path) == EXAMPLE.unified


def test_a_folder_s_own_calibration_comes_before_the_package_s(tmp_path: pathlib.Path):
    shipped = shipped_calibration("tales-5m")
    assert shipped is not None
    assert unified_for("auto", "tales-5m", tmp_path) == shipped.unified
    assert unified_for("auto", "no-such-model", tmp_path) is None
    (tmp_path / "softmax.json").write_text(EXAMPLE.to_json())
    assert unified_for("auto", "tales-5m", tmp_path) == EXAMPLE.unified


def test_no_file_and_no_word(tmp_path: pathlib.Path):
    with pytest.raises(ConfigError, match="softmax is 'sync', which is no file"):
        unified_for("sync", "tales-5m", tmp_path)
