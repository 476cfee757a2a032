"""What ran on a GPU, because CI has none: `python -m tests.gpu_record check`.

`pytest -m gpu` and `python -m tests.sanitize` write `tests/gpu_record.json`: for each
operation the hashes of its sources and what ran over them. On a GPU `run` starts the
tests of each operation that waits for them, in a process of its own: a launch that
fails ends that one alone. A run on another machine writes where `FDJAX_GPU_RECORD` says
(nowhere, where that is empty), and `merge` takes it over. `check` fails where sources
have changed since, in a comment too, unless the operation is listed as pending, with a
reason: `pending`. Every change of the record writes its page of the docs; after a
change by hand `page` does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal, TypedDict

from tests.support.operations import ROOT, gpu_tests, operations, sources

RECORD = ROOT / "tests" / "gpu_record.json"
PAGE = ROOT / "docs" / "gpu-record.md"
KINDS = ("tests", "memcheck", "racecheck")
SHARES = 8
"""Of an operation's tests, each a process, where several run at once."""
SHARE = "FDJAX_GPU_SHARE"
NO_TESTS = 5  # pytest's status
REMEDY = """
Run `python -m tests.gpu_record run` and `python -m tests.sanitize` on a GPU; a record
written elsewhere is taken over by `python -m tests.gpu_record merge FILE`. Where that
must wait, say why:
`python -m tests.gpu_record pending OPERATION REASON`. (A comment is a change as well.)
"""


class Run(TypedDict):
    """What became of an operation's tests, plain or under a tool, and where."""

    result: Literal["passed", "failed"]
    passed: int
    failed: int
    skipped: int
    device: str
    jax: str
    commit: str
    date: str


class Entry(TypedDict):
    """The sources of an operation, as hashes by path, and what ran over these."""

    files: dict[str, str]
    runs: dict[str, Run]


class Record(TypedDict):
    """Entries by operation, and why operations are pending."""

    operations: dict[str, Entry]
    pending: dict[str, str]


def destination() -> Path | None:
    """Where runs are recorded; `None` for nowhere."""
    stated = os.environ.get("FDJAX_GPU_RECORD", str(RECORD))
    return Path(stated) if stated else None


def load(path: Path) -> Record:
    """The record of a file; an empty one where the file does not exist."""
    if not path.exists():
        return {"operations": {}, "pending": {}}
    return json.loads(path.read_text())


def save(record: Record, path: Path) -> None:
    """Writes a record; with the repository's own, its page."""
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if path == RECORD:
        PAGE.write_text(page(PAGE.read_text(), record))


def described(counts: Counter[str], *, device: str, failed: bool) -> Run:
    """A run that has just ended, from the number of its tests by outcome."""
    from benchmarks.results import provenance

    made = provenance()
    return {
        "result": "failed" if failed else "passed",
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "device": device,
        "jax": made["jax"],
        "commit": made["commit"],
        "date": made["date"],
    }


def add(
    record: Record, operation: str, kind: str, run: Run, files: dict[str, str]
) -> None:
    """Puts a run into a record; what ran over other sources is forgotten.

    Once its tests have run, an operation is no longer pending.
    """
    entry = record["operations"].get(operation)
    if entry is None or entry["files"] != files:
        entry = record["operations"][operation] = {"files": files, "runs": {}}
    entry["runs"][kind] = run
    if kind == "tests":
        record["pending"].pop(operation, None)


def merge(record: Record, brought: Record, root: Path = ROOT) -> list[str]:
    """Puts the runs of a record into another; says of which operations it did not.

    Those are the ones that have run over sources other than those of `root`.
    """
    refused: list[str] = []
    for operation, entry in brought["operations"].items():
        if changes := _changes(entry["files"], sources(operation, root)):
            refused.append(f"{operation}: it ran over other sources: {changes}")
            continue
        for kind, run in entry["runs"].items():
            add(record, operation, kind, run, entry["files"])
    return refused


def complaints(record: Record, root: Path = ROOT) -> list[str]:
    """Each operation that has changed since it ran on a GPU, and each that has not."""
    known = operations(root)
    named = {*record["operations"], *record["pending"]}
    gone = [
        f"{name}: no such operation, remove it from {RECORD.name}"
        for name in named - {*known}
    ]
    silent = [
        f"{name}: pending without a reason"
        for name, reason in record["pending"].items()
        if not reason.strip()
    ]
    found = (_complaint(record, name, root) for name in known)
    return sorted([*gone, *silent, *(line for line in found if line is not None)])


def _complaint(record: Record, operation: str, root: Path) -> str | None:
    entry = record["operations"].get(operation)
    if operation in record["pending"]:
        return None
    if entry is None or "tests" not in entry["runs"]:
        return f"{operation}: its tests have no recorded run on a GPU"
    run = entry["runs"]["tests"]
    where = f"on {run['device']} ({run['date']}, {run['commit']})"
    if changes := _changes(entry["files"], sources(operation, root)):
        return f"{operation}: changed since its tests ran {where}: {changes}"
    failed = [kind for kind, run in entry["runs"].items() if run["result"] == "failed"]
    return f"{operation}: {', '.join(failed)} failed" if failed else None


def _changes(before: dict[str, str], now: dict[str, str]) -> str:
    """The files that differ, in words; empty where none does."""
    words = {(True, True): "", (True, False): " (gone)", (False, True): " (new)"}
    return ", ".join(
        path + words[path in before, path in now]
        for path in sorted({*before, *now})
        if before.get(path) != now.get(path)
    )


def table(record: Record) -> str:
    """Markdown: what ran of each operation, and what is pending."""
    head = "| operation | tests | memcheck | racecheck |\n|---|---|---|---|"
    rows = [
        f"| `{name}` | {' | '.join(_cell(entry['runs'].get(k)) for k in KINDS)} |"
        for name, entry in sorted(record["operations"].items())
    ]
    pending = [f"* `{name}`: {why}" for name, why in sorted(record["pending"].items())]
    parts = ["\n".join([head, *rows]) if rows else "No run is recorded yet."]
    ran = {kind for entry in record["operations"].values() for kind in entry["runs"]}
    if rows and (never := " or ".join(kind for kind in KINDS[1:] if kind not in ran)):
        parts.append(
            f"**No operation has a recorded run of {never} yet**, nor does `check` ask "
            "for one: that it passes says nothing of what they would find."
        )
    if pending:
        parts += ["Pending, whatever stands above:", "\n".join(pending)]
    return "\n\n".join(parts)


def _cell(run: Run | None) -> str:
    if run is None:
        return "not run"
    counts = [f"{run[word]} {word}" for word in ("passed", "skipped") if run[word]]
    if run["result"] == "failed":
        counts.insert(0, f"**failed** ({run['failed']} tests)")
    return f"{', '.join(counts)}; {run['device']}, {run['date']}, {run['commit']}"


def page(text: str, record: Record) -> str:
    """The page of the docs, with the present table between its markers."""
    from benchmarks.report import rewritten

    return rewritten(text, "gpu", table(record))


def waiting(record: Record, root: Path = ROOT) -> list[str]:
    """Operations whose tests have not run on a GPU as they are."""
    return [
        name
        for name in operations(root)
        if name in record["pending"] or _complaint(record, name, root) is not None
    ]


def run(names: Sequence[str], jobs: int = 1) -> Iterator[str]:
    """Runs the tests of operations on the GPU that is here; yields which ones failed.

    What passes is recorded as its processes end, so that a run that is cut short keeps
    what it has had.

    Args:
        names: of the operations.
        jobs: processes at once. With several, each has a share of an operation's tests,
            and what it prints comes when it has ended.
    """
    path = destination()
    shares = SHARES if jobs > 1 else 1
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        started = {
            pool.submit(_run_share, name, Path(folder, f"{name}-{i}"), i, shares): name
            for name in names
            for i in range(shares)
        }
        ended: dict[str, list[int]] = {name: [] for name in names}
        for one in as_completed(started):
            statuses = ended[name := started[one]]
            statuses.append(one.result())
            if len(statuses) < shares:
                continue
            if status := max(statuses):
                yield f"{name}: its tests ended with status {status}"
            elif path is not None:
                files = [Path(folder, f"{name}-{i}") for i in range(shares)]
                record = load(path)
                merge(record, whole([load(file) for file in files]))
                save(record, path)


def whole(shares: Sequence[Record]) -> Record:
    """The record of tests whose shares ran apart, over the same sources."""
    found: Record = {"operations": {}, "pending": {}}
    for share in shares:
        for name, entry in share["operations"].items():
            summed = found["operations"].setdefault(name, entry)
            if summed is entry:
                continue
            for kind, added in entry["runs"].items():
                ran = summed["runs"][kind]
                for count in ("passed", "failed", "skipped"):
                    ran[count] += added[count]
    return found


def share_of_tests() -> tuple[int, int]:
    """Which share of an operation's tests this process has, and of how many."""
    index, _, count = os.environ.get(SHARE, "0/1").partition("/")
    return int(index), int(count)


def _run_share(name: str, record: Path, index: int, shares: int) -> int:
    """Runs a share of the tests of one operation, recorded in a file.

    Returns:
        The status of pytest, 0 where a share has no test.
    """
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *gpu_tests(name)]
    env = os.environ | {"JAX_PLATFORMS": "cuda,cpu", "FDJAX_GPU_RECORD": str(record)}
    alone = shares == 1
    if not alone:
        env[SHARE] = f"{index}/{shares}"
        # Else the first one takes three quarters of the memory.
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    out = None if alone else subprocess.PIPE
    ended = subprocess.run(command, env=env, check=False, stdout=out, text=True)
    if ended.stdout:
        print(ended.stdout, flush=True)
    none = not alone and ended.returncode == NO_TESTS
    return 0 if none else ended.returncode


def main() -> None:
    """Checks or changes the repository's record."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="fail where a kernel has changed since it ran")
    commands.add_parser("page", help="write the page of the docs")
    taking = commands.add_parser("merge", help="take over what ran elsewhere")
    taking.add_argument("file", type=Path)
    reasoning = commands.add_parser("pending", help="say why an operation has not run")
    reasoning.add_argument("operation", choices=operations())
    reasoning.add_argument("reason")
    running = commands.add_parser("run", help="run tests on the GPU that is here")
    running.add_argument(
        "operations", nargs="*", help="default: those that wait for it, see `check`"
    )
    running.add_argument(
        "--jobs", type=int, default=1, help="processes at once (default: %(default)s)"
    )
    arguments = parser.parse_args()
    record, lines = load(RECORD), list[str]()
    if arguments.command == "run":
        names = arguments.operations or waiting(record)
        if failed := [*run(names, arguments.jobs)]:
            raise SystemExit("\n".join(failed))
        return
    if arguments.command == "check":
        lines = complaints(record)
    elif arguments.command == "merge":
        lines = merge(record, json.loads(arguments.file.read_text()))
    elif arguments.command == "pending":
        record["pending"][arguments.operation] = arguments.reason
    if arguments.command != "check":
        save(record, RECORD)
    if lines:
        raise SystemExit("\n".join([*lines, REMEDY]))


if __name__ == "__main__":
    main()
