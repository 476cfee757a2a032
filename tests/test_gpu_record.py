"""The record of what ran on a GPU: its hashes, checks and merging."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_record
from tests.gpu_record import Record, Run
from tests.support import kernel_tree
from tests.support.kernel_tree import RUN
from tests.support.operations import (
    ABOUT,
    ROOT,
    build_id,
    gpu_tests,
    operation_of,
    operations,
    sources,
)

SHARED = {
    "ffi/include/fdjax/gpu.h",
    "ffi/shared/bits.cuh",
    "ffi/shared/slots.cuh",
    "ffi/sum/kernel.cuh",
}
SUM = {
    *SHARED,
    "ffi/sum/gpu_handler.cc",
    "fdjax/kernels/sum/__init__.py",
    "fdjax/kernels/sum/pallas/kernel.py",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with two operations, one of which includes a header of the other."""
    return kernel_tree.make(tmp_path / "tree")


def _recorded(root: Path, **kinds: Run) -> Record:
    record: Record = {"operations": {}, "pending": {"sum_flat": "not written yet"}}
    for kind, run in (kinds or {"tests": RUN}).items():
        gpu_record.add(record, "sum", kind, run, sources("sum", root))
    return record


# --- Sources --------------------------------------------------------------------------


def test_sources_follow_includes(root: Path):
    assert operations(root) == ["sum", "sum_flat"]
    assert sources("sum", root).keys() == SUM
    assert sources("sum_flat", root).keys() == {
        *SHARED,
        "ffi/sum_flat/gpu_handler.cc",
        "fdjax/kernels/sum_flat/__init__.py",
    }


def test_hashes_depend_on_bytes_alone(root: Path, tmp_path: Path):
    copied = shutil.copytree(root, tmp_path / "elsewhere")
    (copied / "ffi" / "sum" / "kernel.cuh").touch()
    assert sources("sum", copied) == sources("sum", root)
    with (copied / "ffi" / "sum" / "kernel.cuh").open("a") as file:
        file.write("\n// A remark.")
    before, now = sources("sum", root), sources("sum", copied)
    assert [path for path in now if now[path] != before[path]] == ["ffi/sum/kernel.cuh"]


def test_tests_belong_to_the_longest_name(root: Path):
    assert operation_of("tests/kernels/test_sum_more.py", root) == "sum"
    assert operation_of("tests/kernels/test_sum_flat.py", root) == "sum_flat"
    assert operation_of("tests/kernels/test_summary.py", root) is None
    more = "tests/kernels/test_sum_more.py"
    assert gpu_tests("sum", root) == ["tests/kernels/test_sum.py", more]


def test_every_operation_has_tests_on_a_gpu():
    assert "matmul" in operations()
    assert [name for name in operations() if not gpu_tests(name)] == []


def test_every_file_with_tests_on_a_gpu_is_of_an_operation():
    folder = ROOT / "tests" / "kernels"
    tests = folder.glob("test_*.py")
    files = {path.stem for path in tests if "mark.gpu" in path.read_text()}
    assert {stem for stem in files if operation_of(stem) is None} == set()
    assert files >= ABOUT.keys()
    assert {operation_of(stem) for stem in ABOUT} == {*ABOUT.values()}


def test_the_extension_says_which_sources_it_is_built_from():
    extension = pytest.importorskip("fdjax._ffi")
    built = extension.build_info()["build_id"]
    assert built == build_id(), "ffi/ has changed: install fdjax again"


# --- Check ----------------------------------------------------------------------------


def test_what_ran_as_it_is_passes(root: Path):
    assert gpu_record.complaints(_recorded(root), root) == []


def test_a_change_is_told_with_its_files(root: Path):
    record = _recorded(root)
    (root / "ffi/include/fdjax/gpu.h").write_text("// Only a comment.")
    (root / "ffi/sum/extra.cuh").touch()
    (root / "fdjax/kernels/sum/pallas/kernel.py").unlink()
    (line,) = gpu_record.complaints(record, root)
    assert line == (
        "sum: changed since its tests ran on NVIDIA H200 (2026-11-23, abc1234): "
        "fdjax/kernels/sum/pallas/kernel.py (gone), ffi/include/fdjax/gpu.h, "
        "ffi/sum/extra.cuh (new)"
    )
    record["pending"]["sum"] = "the GPU is away until Monday"
    assert gpu_record.complaints(record, root) == []


def test_what_has_no_run_or_no_sense_is_told(root: Path):
    record = _recorded(root, memcheck=RUN)
    record["pending"] = {"sum_flat": " ", "summ": "a slip of the pen"}
    lines = gpu_record.complaints(record, root)
    assert [line.partition(",")[0] for line in lines] == [
        "sum: its tests have no recorded run on a GPU",
        "sum_flat: pending without a reason",
        "summ: no such operation",
    ]


def test_what_a_tool_found_is_told(root: Path):
    record = _recorded(root, tests=RUN, racecheck={**RUN, "result": "failed"})
    assert gpu_record.complaints(record, root) == ["sum: racecheck failed"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Record]:
    """Runs the command over a record that is empty at first; gives the record."""
    monkeypatch.setattr(gpu_record, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(gpu_record, "PAGE", tmp_path / "page.md")
    gpu_record.PAGE.write_text("<!-- results: gpu -->\n<!-- /results -->")

    def run(*arguments: str) -> Record:
        monkeypatch.setattr(sys, "argv", ["gpu_record", *arguments])
        gpu_record.main()
        return gpu_record.load(gpu_record.RECORD)

    return run


def test_the_command_fails_with_the_remedy(command: Callable[..., Record]):
    with pytest.raises(SystemExit, match=r"matmul: its tests(.|\n)*FILE(.|\n)*pending"):
        command("check")


def test_the_command_changes_record_and_page(
    command: Callable[..., Record], tmp_path: Path
):
    brought: Record = {"operations": {}, "pending": {}}
    gpu_record.add(brought, "draw", "tests", RUN, sources("draw"))
    gpu_record.save(brought, tmp_path / "brought.json")
    for name in operations():
        command("pending", name, "the GPU is away")
    command("check")
    assert "* `draw`: the GPU is away" in gpu_record.PAGE.read_text()

    record = command("merge", str(tmp_path / "brought.json"))
    assert record["operations"] == brought["operations"]
    assert record["pending"].keys() == {*operations()} - {"draw"}
    assert "| `draw` | 5 passed" in gpu_record.PAGE.read_text()
    command("check")


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_command_runs_what_waits_each_in_a_process_of_its_own(
    command: Callable[..., Record], monkeypatch: pytest.MonkeyPatch, jobs: int
):
    started: list[list[str]] = []

    def start(
        words: list[str], *, env: dict[str, str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        assert env["JAX_PLATFORMS"] == "cuda,cpu"
        assert ("XLA_PYTHON_CLIENT_PREALLOCATE" in env) == (jobs > 1)
        assert not options["check"]
        files = words[words.index("gpu") + 1 :]
        started.append(files)
        failed = "draw" in files[-1]
        if not failed:
            _write_record(files, Path(env["FDJAX_GPU_RECORD"]))
        return subprocess.CompletedProcess(words, int(failed), "its output\n")

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    monkeypatch.setenv("FDJAX_GPU_RECORD", str(gpu_record.RECORD))
    with pytest.raises(SystemExit, match=r"^draw: its tests ended with status 1$"):
        command("run", "--jobs", str(jobs))
    shares = gpu_record.SHARES if jobs > 1 else 1
    expected = [gpu_tests(name) for name in operations()] * shares
    assert sorted(started) == sorted(expected)
    ran = gpu_record.load(gpu_record.RECORD)["operations"].keys()
    assert ran == {*operations()} - {"draw"}
    command("run", "matmul", "page_move", "--jobs", str(jobs))
    expected = [gpu_tests(name) for name in ("matmul", "page_move")] * shares
    assert sorted(started[-2 * shares :]) == sorted(expected)
    (record,) = (gpu_record.load(gpu_record.RECORD)["operations"]["matmul"]["runs"],)
    assert record["tests"]["passed"] == shares * RUN["passed"]


def test_a_share_that_fails_is_told_and_one_without_tests_is_not(
    command: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
):
    status = pytest.ExitCode.TESTS_FAILED

    def start(
        words: list[str], *, env: dict[str, str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        del options
        if env[gpu_record.SHARE] == f"2/{gpu_record.SHARES}":
            return subprocess.CompletedProcess(words, status, "")
        files = words[words.index("gpu") + 1 :]
        _write_record(files, Path(env["FDJAX_GPU_RECORD"]))
        return subprocess.CompletedProcess(words, 0, "")

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setenv("FDJAX_GPU_RECORD", str(gpu_record.RECORD))
    with pytest.raises(SystemExit, match=r"^draw: its tests ended with status 1$"):
        command("run", "draw", "--jobs", "2")
    assert not gpu_record.RECORD.exists()
    status = pytest.ExitCode.NO_TESTS_COLLECTED
    command("run", "draw", "--jobs", "2")
    ran = gpu_record.load(gpu_record.RECORD)["operations"]["draw"]["runs"]["tests"]
    assert ran["passed"] == (gpu_record.SHARES - 1) * RUN["passed"]


def _write_record(files: list[str], path: Path) -> None:
    """What pytest leaves where all tests of the files' operation passed."""
    record = gpu_record.load(path)
    name = next(one for one in operations() if gpu_tests(one) == files)
    gpu_record.add(record, name, "tests", RUN, sources(name))
    gpu_record.save(record, path)


def test_a_run_that_is_cut_short_keeps_what_has_ended(
    command: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
):
    def start(
        words: list[str], *, env: dict[str, str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        del options
        files = words[words.index("gpu") + 1 :]
        if files == gpu_tests("matmul"):
            raise KeyboardInterrupt
        _write_record(files, Path(env["FDJAX_GPU_RECORD"]))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setenv("FDJAX_GPU_RECORD", str(gpu_record.RECORD))
    with pytest.raises(KeyboardInterrupt):
        command("run", "page_move", "matmul")
    assert gpu_record.load(gpu_record.RECORD)["operations"].keys() == {"page_move"}


def test_what_is_pending_or_has_changed_waits_for_a_run(root: Path):
    record = _recorded(root)
    assert gpu_record.waiting(record, root) == ["sum_flat"]
    (root / "ffi/shared/bits.cuh").write_text("// changed")
    assert gpu_record.waiting(record, root) == ["sum", "sum_flat"]


# --- Runs -----------------------------------------------------------------------------


def test_other_sources_forget_what_ran_before(root: Path):
    record = _recorded(root, tests=RUN, memcheck=RUN)
    record["pending"]["sum"] = "changed since"
    (root / "ffi/sum/kernel.cuh").write_text("// New.")
    gpu_record.add(record, "sum", "racecheck", RUN, sources("sum", root))
    assert record["operations"]["sum"]["runs"].keys() == {"racecheck"}
    assert "sum" in record["pending"]
    gpu_record.add(record, "sum", "tests", RUN, sources("sum", root))
    assert record["operations"]["sum"]["runs"].keys() == {"racecheck", "tests"}
    assert "sum" not in record["pending"]


def test_merging_takes_what_ran_on_these_sources(root: Path, tmp_path: Path):
    copied = shutil.copytree(root, tmp_path / "elsewhere")
    brought, record = _recorded(copied, memcheck=RUN), _recorded(root)
    assert gpu_record.merge(record, brought, root) == []
    assert record["operations"]["sum"]["runs"] == {"tests": RUN, "memcheck": RUN}

    (copied / "ffi/sum/kernel.cuh").write_text("// Other.")
    brought = _recorded(copied, tests={**RUN, "passed": 1})
    (line,) = gpu_record.merge(record, brought, root)
    assert "sum: it ran over other sources" in line and "ffi/sum/kernel.cuh" in line
    assert record["operations"]["sum"]["runs"]["tests"] == RUN


# --- The page -------------------------------------------------------------------------


def test_the_page_tells_runs_and_what_is_pending(root: Path):
    failed: Run = {**RUN, "result": "failed", "failed": 2}
    text = gpu_record.table(_recorded(root, tests=RUN, memcheck=failed))
    assert "| 5 passed, 1 skipped; NVIDIA H200, 2026-11-23, abc1234 |" in text
    assert "**failed** (2 tests)" in text and "| not run |" in text
    assert text.endswith("* `sum_flat`: not written yet")


def test_the_page_says_what_no_operation_has_had(root: Path):
    never = gpu_record.table(_recorded(root, tests=RUN))
    assert "**No operation has a recorded run of memcheck or racecheck yet**" in never
    one = gpu_record.table(_recorded(root, tests=RUN, memcheck=RUN))
    assert "**No operation has a recorded run of racecheck yet**" in one
    both = gpu_record.table(_recorded(root, tests=RUN, memcheck=RUN, racecheck=RUN))
    assert "No operation" not in both
