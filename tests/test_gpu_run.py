"""Runs of pytest that are recorded, whole or in part."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from benchmarks import results
from tests import gpu_record
from tests.gpu_record import Run
from tests.support import gpu_run, kernel_tree
from tests.support.kernel_tree import RUN

pytest_plugins = ("pytester",)

type Recording = Callable[..., dict[str, Run]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with two operations, one of which includes a header of the other."""
    return kernel_tree.make(tmp_path / "tree")


@pytest.fixture
def recording(
    root: Path,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Recording:
    """Runs pytest in the tree and gives what it recorded of each operation."""
    jax.devices()  # what is imported within a run of pytester is forgotten after it
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds
    monkeypatch.chdir(root)
    monkeypatch.setattr(results, "provenance", lambda: RUN)
    monkeypatch.setattr(gpu_run, "refuse", dict[str, str]().get)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = gpu: on a GPU")

    def run(*options: str, share: tuple[int, int] = (0, 1)) -> dict[str, Run]:
        path = tmp_path / "record.json"
        path.unlink(missing_ok=True)
        plugin = gpu_run.GpuRun(path, root, share)
        pytester.inline_run("--import-mode=importlib", *options, plugins=[plugin])
        entries = gpu_record.load(path)["operations"]
        return {name: entry["runs"]["tests"] for name, entry in entries.items()}

    return run


def test_a_whole_run_is_recorded(recording: Recording):
    recorded = recording("-m", "gpu")
    assert recorded.keys() == {"sum", "sum_flat"}
    device = jax.devices()[0].device_kind
    assert recorded["sum"] == {**RUN, "passed": 3, "device": device}


def test_a_failure_is_not_recorded(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BROKEN", "1")
    assert recording("-m", "gpu").keys() == {"sum"}


def test_a_run_of_a_part_records_what_ran_whole(recording: Recording):
    kernels = "tests/kernels"
    assert recording("-m", "gpu", "-k", "not 1").keys() == {"sum_flat"}
    assert recording("-m", "not gpu") == {}
    assert recording(f"{kernels}/test_sum_flat.py").keys() == {"sum_flat"}
    assert recording(f"{kernels}/test_sum.py") == {}
    two = (f"{kernels}/test_sum.py", f"{kernels}/test_sum_more.py")
    assert recording(*two).keys() == {"sum"}
    assert recording(f"{kernels}/test_sum_flat.py::test_flat") == {}
    assert recording("-m", "gpu", "--lf") == {}


def test_shares_are_all_tests_and_each_records_its_own(recording: Recording):
    sums = [recording("-m", "gpu", share=(i, 2))["sum"]["passed"] for i in range(2)]
    assert sorted(sums) == [1, 2]
    assert recording("-m", "gpu", share=(3, 4)).keys() == {"sum_flat"}


def test_an_extension_of_other_sources_records_nothing(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu_run, "refuse", lambda name: f"{name} is not built")
    assert recording("-m", "gpu") == {}


@pytest.mark.cpu
def test_nothing_runs_on_a_gpu_that_is_not_there():
    assert gpu_run.refuse("matmul") is not None
