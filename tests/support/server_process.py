"""`fdjax serve` in a process of its own, and what Linux says of it."""

import collections
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

SERVE = (sys.executable, "-m", "fdjax", "serve", "--port", "0")


@contextlib.contextmanager
def server(
    *options: str,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    log: list[str] | None = None,
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it listens; it is killed at the end.

    Args:
        options: of `fdjax serve`.
        wrapper: a command that runs it.
        environment: besides this process's.
        log: gets the lines of its log.

    Raises:
        SystemExit: it ended before that; the log says why.
    """
    process = subprocess.Popen(
        (*wrapper, *SERVE, *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    lines: list[str] = [] if log is None else log
    reading: threading.Thread | None = None
    try:
        url = _address(process.stderr, lines)
        # A line a request: a pipe that nobody reads would stop the server.
        kept = collections.deque[str](maxlen=0) if log is None else log
        reading = threading.Thread(target=kept.extend, args=(process.stderr,))
        reading.start()
        yield process, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        if reading is not None:
            reading.join()
        process.stderr.close()


def _address(log: Iterable[str], lines: list[str]) -> str:
    for line in log:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise SystemExit("".join(lines))


def resident_bytes(pid: int) -> int:
    """Of one process; none where it has ended and nobody has asked how."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(found[1]) if found is not None else 0


def open_files(pid: int) -> int:
    """File descriptors of one process."""
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def family(pid: int) -> Iterator[int]:
    """A process, and all that it has started."""
    yield pid
    for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            yield from family(int(child))
