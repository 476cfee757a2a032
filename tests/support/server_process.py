"""`fdjax serve` in a process of its own, and what Linux says of it."""

import collections
import contextlib
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator

SERVE = (sys.executable, "-m", "fdjax", "serve", "--port", "0")


@contextlib.contextmanager
def server(*options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it listens; it is killed at the end."""
    process = subprocess.Popen(
        (*SERVE, *options), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        url = _address(process)
        # A line a request: a pipe that nobody reads would stop the server.
        threading.Thread(target=collections.deque, args=(process.stderr, 0)).start()
        yield process, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise SystemExit("".join(lines))


def resident_bytes(pid: int) -> int:
    """Of one process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def open_files(pid: int) -> int:
    """File descriptors of one process."""
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def family(pid: int) -> Iterator[int]:
    """A process, and all that it has started."""
    yield pid
    for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            yield from family(int(child))
