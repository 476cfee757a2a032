"""What compute-sanitizer came to, recorded by operation."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import gpu_record, sanitize
from tests.gpu_record import Run
from tests.support.operations import operations

CLEAN = 'tests="7" failures="0" errors="0" skipped="2"'

type Recording = Callable[..., tuple[int, dict[str, Run]]]


@pytest.fixture
def recorded_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    """What a run of memcheck records, that ends with a status and a JUnit file."""
    monkeypatch.setenv("FDJAX_GPU_RECORD", str(tmp_path / "record.json"))
    monkeypatch.setattr(sanitize, "device", lambda: "NVIDIA H200")
    monkeypatch.setattr(sanitize, "refuse_build", lambda: None)
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: name)

    def run(status: int, suite: str, *options: str) -> tuple[int, dict[str, Run]]:
        def call(line: list[str], env: dict[str, str]) -> int:
            report = Path(line[-1].partition("=")[2])
            assert Path(env["FDJAX_GPU_RECORD"]).parent == report.parent  # soon gone
            if suite:
                report.write_text(f"<testsuites><testsuite {suite}/></testsuites>")
            return status

        monkeypatch.setattr(sanitize.subprocess, "call", call)
        monkeypatch.setattr(sys, "argv", ["sanitize", "--tools", "memcheck", *options])
        ended = sanitize.main()
        entries = gpu_record.load(tmp_path / "record.json")["operations"]
        return ended, {name: e["runs"]["memcheck"] for name, e in entries.items()}

    return run


def test_a_clean_tool_is_recorded(recorded_by: Recording):
    status, runs = recorded_by(0, CLEAN)
    assert status == 0 and runs.keys() == {*operations()}
    draw = runs["draw"]
    assert (draw["result"], draw["passed"], draw["skipped"]) == ("passed", 5, 2)


@pytest.mark.parametrize("suite", [CLEAN, ""], ids=["found something", "died"])
def test_what_a_tool_found_is_recorded(recorded_by: Recording, suite: str):
    status, runs = recorded_by(9, suite, "tests/kernels/test_draw.py")
    assert status == 9
    assert {name: run["result"] for name, run in runs.items()} == {"draw": "failed"}


def test_a_tool_without_tests_or_with_a_part_of_them_is_not_recorded(
    recorded_by: Recording,
):
    none = 'tests="0" failures="0" errors="0" skipped="0"'
    draw = "tests/kernels/test_draw.py"
    assert recorded_by(pytest.ExitCode.NO_TESTS_COLLECTED, none) == (0, {})
    assert recorded_by(0, CLEAN, "-k", "odd", draw) == (0, {})
    assert recorded_by(0, CLEAN, f"{draw}::test_list") == (0, {})


def test_tests_are_shared_out_over_processes(
    recorded_by: Recording, monkeypatch: pytest.MonkeyPatch
):
    draw = "tests/kernels/test_draw.py"
    names = [f"{draw}::test_one[{i}]" for i in range(5)]
    shares: list[list[str]] = []

    def command(tool: str, tests: list[str], selection: str) -> list[str]:
        shares.append(tests)
        return []

    monkeypatch.setattr(sanitize, "collected", lambda tests, selection: names)
    monkeypatch.setattr(sanitize, "command", command)
    status, runs = recorded_by(0, CLEAN, "--jobs", "3", draw)
    assert status == 0 and runs["draw"]["passed"] == 3 * 5
    assert sorted(name for share in shares for name in share) == names
    assert len(shares) == 3
    status, runs = recorded_by(9, CLEAN, "--jobs", "3", draw)
    assert status == 9 and runs["draw"]["result"] == "failed"


def test_what_a_selection_has_is_collected():
    file = "tests/kernels/test_page_move.py"
    found = sanitize.collected([file], "not bench")
    assert found and all(name.startswith(f"{file}::") for name in found)
    assert not sanitize.collected(["tests/test_sanitize.py"], "not bench")  # no GPU's
