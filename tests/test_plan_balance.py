"""`benchmarks/plan_balance.py`: draws of one seed, and of seeds that are held out."""

import json
import pathlib

import pytest

from benchmarks import plan_balance

CONVERSATIONS = (
    pathlib.Path(plan_balance.__file__).parent / "data" / "azure_conv_2023_500.csv"
)
TRACE = [(10, 5), (400, 90), (2_000, 300), (9_000, 50)]


@pytest.fixture
def trace(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{prompt},{output}\n" for prompt, output in TRACE)
    path.write_text(f"ContextTokens,GeneratedTokens\n{rows}")
    return path


def test_each_seed_is_measured_by_itself(trace: pathlib.Path, tmp_path: pathlib.Path):
    out = tmp_path / "found.json"
    plan_balance.main(
        [str(trace), "--draws", "3", "--seeds", "64", "1", "--out", str(out)]
    )
    found = json.loads(out.read_text())
    kept = [(one["rows"], one["seed"], one["held_out"]) for one in found]
    assert kept == [
        (64, 64, False), (64, 1, True), (256, 64, True), (256, 1, True)
    ]  # fmt: skip
    assert found[0]["mean"] != found[1]["mean"]


def test_by_default_most_seeds_are_held_out(
    trace: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan_balance, "ROWS", (8,))
    out = tmp_path / "found.json"
    plan_balance.main([str(trace), "--draws", "2", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [one["seed"] for one in found if not one["held_out"]] == [8]
    assert [one["seed"] for one in found if one["held_out"]] == [1, 2, 3, 4]


def test_a_seed_draws_the_same_again():
    first, again = (plan_balance.balance(TRACE, 64, 3, seed=64) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("rows", plan_balance.ROWS)
def test_the_busiest_cluster_has_little_more_than_the_mean(rows: int):
    """Of conversations: a part of what `plan_balance.json` has of 1,000 draws."""
    found = plan_balance.balance(
        plan_balance.read_trace(CONVERSATIONS), rows, 25, seed=2026
    )
    assert found["worst"] <= plan_balance.WANTED


def test_results_that_are_kept_have_draws_that_no_length_was_chosen_on():
    kept = json.loads(plan_balance.RESULT.read_text())
    for rows in plan_balance.ROWS:
        seeds = [one["seed"] for one in kept if one["rows"] == rows]
        assert seeds == [*plan_balance.seeds_of(rows)]
