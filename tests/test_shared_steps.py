"""The benchmark of rows whose prompts begin alike, over a tiny model."""

import json
import pathlib
import sys

import pytest

from benchmarks import shared_steps
from benchmarks.shared_steps import SharedCase
from tests.support.hf_model import FIXTURES


def test_cases_share_what_they_say():
    case = SharedCase.read("3x20+5")
    assert (case, str(case)) == (SharedCase(3, 20, 5), "3x20+5")
    first, *others = case.prompts(100)
    assert all(one[:20] == first[:20] and one[20:] != first[20:] for one in others)
    assert all(len(one) == 25 for one in (first, *others))


def test_both_ways_are_timed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "shared_steps.json"
    asked = f"--model {FIXTURES / 'llama'} --cases 3x32+4,2x0+9 --steps 40 --out {out}"
    monkeypatch.setattr(sys, "argv", ["shared_steps", *asked.split()])
    shared_steps.main()
    rows = json.loads(out.read_text())
    assert [row["case"] for row in rows] == ["3x32+4", "2x0+9"]
    for row in rows:
        assert row["ms_each"] > 0 and row["ms_once"] > 0
        assert row["faster_by"] == pytest.approx(
            row["ms_each"] / row["ms_once"], abs=0.01, rel=0.02
        )
