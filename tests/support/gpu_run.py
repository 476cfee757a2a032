"""A plugin of pytest that records which operations' tests ran whole on a GPU."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests import gpu_record
from tests.support.operations import ROOT, build_id, gpu_tests, operations, sources


def refuse(operation: str) -> str | None:
    """Why a run says nothing of an operation's sources, or `None`."""
    from fdjax.kernels import ffi

    reason = ffi.refuse(operation, platform="gpu")
    return reason or refuse_build()


def refuse_build() -> str | None:
    """Why the extension is none of these sources, or `None`."""
    import fdjax._ffi as built

    if (found := built.build_info()["build_id"]) != (wanted := build_id()):
        return f"the extension is build {found}, and ffi/ makes {wanted}: install again"
    return None


class GpuRun:
    """Counts what becomes of the tests with the marker `gpu`, file by file.

    An operation is recorded where every such test of its files was collected and ran,
    and none failed.

    Args:
        path: of the record.
        root: of the tree.
        share: of the tests with the marker, which one runs, and of how many. The others
            are left out, and the record is that of the share.
    """

    def __init__(
        self, path: Path, root: Path = ROOT, share: tuple[int, int] = (0, 1)
    ) -> None:
        self._path = path
        self._root = root
        self._share = share
        self._collected: dict[str, list[str]] = defaultdict(list)
        self._outcomes: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Notes all tests of the files, before `-m` and `-k` leave any out."""
        index, shares = self._share
        if shares > 1:
            items[:] = [one for one in items if one.get_closest_marker("gpu")]
            items[:] = items[index::shares]
        by_name = any("::" in argument for argument in config.args)
        if by_name or config.getoption("lf", default=False):
            return  # then files are collected in part
        for item in items:
            if item.get_closest_marker("gpu"):
                file = item.nodeid.partition("::")[0]
                self._collected[file].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst that a test's stages came to."""
        if report.when == "setup" and report.passed:
            return  # it may be interrupted still
        if self._outcomes.get(report.nodeid, "passed") == "passed":
            self._outcomes[report.nodeid] = report.outcome
        elif report.outcome == "failed":
            self._outcomes[report.nodeid] = "failed"

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Records at the end, and says so."""
        import jax

        record, names = gpu_record.load(self._path), list[str]()
        for operation, counts in self.whole().items():
            if reason := refuse(operation):
                terminalreporter.write_line(f"{operation} is not recorded: {reason}")
                continue
            device = jax.devices()[0].device_kind
            run = gpu_record.described(counts, device=device, failed=False)
            files = sources(operation, self._root)
            gpu_record.add(record, operation, "tests", run, files)
            names.append(operation)
        if names:
            gpu_record.save(record, self._path)
            terminalreporter.write_line(f"{', '.join(names)}: recorded in {self._path}")

    def whole(self) -> dict[str, Counter[str]]:
        """By operation that ran whole, how many of its tests came to what."""
        found: dict[str, Counter[str]] = {}
        for operation in operations(self._root):
            files = gpu_tests(operation, self._root)
            # A share may have no test of a file.
            none = [""] if self._share[1] == 1 else []
            tests = [test for file in files for test in self._collected.get(file, none)]
            counts = Counter(self._outcomes.get(test, "missing") for test in tests)
            if counts["passed"] and not counts["failed"] and not counts["missing"]:
                found[operation] = counts
        return found
