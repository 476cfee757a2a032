"""compute-sanitizer over the CUDA kernels' tests: `python -m tests.sanitize`.

Every buffer is an allocation of its own (XLA's pool would hide reads past an end), XLA
captures no graphs (the tools do not survive its), and only our kernels are watched, in
this process alone: with those that XLA starts (ptxas) the tools end by a signal. What a
tool reports fails the run. The largest shapes are left out: they take hours. Each
operation has a process of its own, and what a tool came to over all of its tests is
recorded (`tests/gpu_record.py`).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import gpu_record
from tests.support.gpu_run import refuse_build
from tests.support.operations import operation_of, sources

LARGE = "bench or beyond or llama3_8b_head or llama3_8b_down or two_runs"
# By tool, which tests. racecheck does not know the barrier of a cluster: where a row's
# tokens are split over blocks, it takes what one block sends another for a race with
# that block's earlier copies. The cases here have one split: nothing is sent. Nor does
# it know an order that goes through a warp (`__syncwarp`) and then through a barrier at
# which one lane arrives.
TOOLS = {
    "memcheck": f"not ({LARGE})",
    "racecheck": "(cuda and agrees and (odd_group or tales or llama2_7b))"
    " or (cuda_equals and packed and (everything or d64))"
    " or (follows_a_tree and tiles and d64)"
    " or (test_draw and agrees_with and 64-1000) or (gemv and (tiny or odd))"
    " or (test_some_rows_of_a_tile) or (same_plan and None-64)"
    " or (kernel_lists_what_the_definition_does)"
    " or (test_token_places and kernel_equals) or (test_add_norm and kernel_agrees)"
    " or (test_embedding and kernel_agrees) or (test_page_move and kernel_agrees)"
    " or (test_shared_prefix and kernel_equals and (nested-64 or some-group_7))"
    " or (test_shared_prefix and kernel_scores and (sinks or unified))",
}
TESTS = (
    "tests/kernels/test_absent_pages.py",
    "tests/kernels/test_add_norm.py",
    "tests/kernels/test_attention_plan.py",
    "tests/kernels/test_attention_states_cuda.py",
    "tests/kernels/test_bad_views_gpu.py",
    "tests/kernels/test_decode_attention_cuts.py",
    "tests/kernels/test_decode_attention_impls.py",
    "tests/kernels/test_draw.py",
    "tests/kernels/test_embedding.py",
    "tests/kernels/test_layer_program.py",
    "tests/kernels/test_matmul.py",
    "tests/kernels/test_page_move.py",
    "tests/kernels/test_prefill_attention.py",
    "tests/kernels/test_prefill_attention_unified.py",
    "tests/kernels/test_prefill_plan.py",
    "tests/kernels/test_shared_prefix.py",
    "tests/kernels/test_rope_kv_write.py",
    "tests/kernels/test_token_places.py",
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda,cpu",
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def command(tool: str, tests: Sequence[str], selection: str) -> list[str]:
    """The command line of one tool."""
    return [
        *("compute-sanitizer", "--tool", tool, "--kernel-name", "kns=fdjax"),
        *("--target-processes", "application-only"),
        *("--error-exitcode", "9", "--print-limit", "20"),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x"),
        *("-m", "gpu", "-k", selection, *tests),
    ]


def run(
    tool: str, tests: Sequence[str], selection: str, jobs: int = 1
) -> tuple[int, Counter[str]]:
    """The exit status of a tool over some tests, and how many came to what.

    Args:
        tool: one of `TOOLS`.
        tests: files, or single tests.
        selection: which of them, as pytest's `-k`.
        jobs: processes at once, each with a share of the tests.
    """
    shares: list[Sequence[str]] = [tests]
    if jobs > 1:
        found = collected(tests, selection)
        shares = [share for i in range(jobs) if (share := found[i::jobs])] or [tests]
    with ThreadPoolExecutor(len(shares)) as pool:
        ended = [*pool.map(lambda share: _run_share(tool, share, selection), shares)]
    status = max((status for status, _ in ended), key=abs)  # of signals: below 0
    return status, sum((counts for _, counts in ended), Counter[str]())


def collected(tests: Sequence[str], selection: str) -> list[str]:
    """The names of the tests that a selection has."""
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    line += ["--collect-only", "-m", "gpu", "-k", selection, *tests]
    environment = {**os.environ, **ENVIRONMENT, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        line, env=environment, check=False, stdout=subprocess.PIPE, text=True
    )
    return [name for name in done.stdout.splitlines() if "::" in name]


def _run_share(
    tool: str, tests: Sequence[str], selection: str
) -> tuple[int, Counter[str]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        line = [*command(tool, tests, selection), f"--junitxml={report}"]
        print(*line, flush=True)
        # The run is recorded here: the tool's findings are not known to the tests. They
        # record where nobody reads: compute-sanitizer drops a variable that is empty.
        unread = {"FDJAX_GPU_RECORD": str(Path(folder) / "unread.json")}
        environment = {**os.environ, **ENVIRONMENT, **unread}
        status = subprocess.call(line, env=environment)
        counts = counted(report)
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        status = 0
    return status, counts


def counted(report: Path) -> Counter[str]:
    """How many tests of a JUnit file came to what; none where it was not written."""
    if not report.exists():
        return Counter()
    suites = list(ElementTree.parse(report).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    passed = total - failed - skipped
    return Counter(passed=passed, failed=failed, skipped=skipped)


def record(tool: str, operation: str, counts: Counter[str], *, failed: bool) -> None:
    """Records what a tool came to over the tests of an operation, if any ran."""
    path = gpu_record.destination()
    if path is None or not (counts["passed"] or failed):
        return
    if reason := refuse_build():
        print(f"{operation} is not recorded: {reason}")
        return
    made = gpu_record.load(path)
    described = gpu_record.described(counts, device=device(), failed=failed)
    gpu_record.add(made, operation, tool, described, sources(operation))
    gpu_record.save(made, path)


def device() -> str:
    """The first GPU's name. JAX would say it too, and take the memory of it."""
    line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].strip()


def by_operation(tests: Iterable[str]) -> dict[str | None, list[str]]:
    """Test files by what they are about, in a fixed order."""
    found: dict[str | None, list[str]] = {}
    for test in tests:
        found.setdefault(operation_of(test.partition("::")[0]), []).append(test)
    return found


def is_whole(operation: str, tests: Iterable[str]) -> bool:
    """Whether they are all test files of an operation that the tools run."""
    own = by_operation(TESTS).get(operation)
    return own is not None and {*own} <= {*tests}


def main() -> int:
    """Runs each tool over each operation; the first failure is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("-k", dest="selection", help="instead of the tool's own")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at once (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer is not on the path; it comes with CUDA")
    first = 0
    for tool in arguments.tools.split(","):
        for operation, tests in by_operation(arguments.tests).items():
            selection = arguments.selection or TOOLS[tool]
            status, counts = run(tool, tests, selection, arguments.jobs)
            first = first or status
            if operation and not arguments.selection and is_whole(operation, tests):
                record(tool, operation, counts, failed=status != 0)
    return first


if __name__ == "__main__":
    raise SystemExit(main())
