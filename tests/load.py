"""Many clients of `fdjax serve` with the small model: `python -m tests.load`.

Fails if a request is not answered in full, or if the server's memory grows: the median
of its resident bytes over the last quarter of the time may be at most 2 % above that
over the second quarter (in the first, buffers and caches fill).
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import time

from tests.support.load import Load, load
from tests.support.server_process import resident_bytes, server

OPTIONS = ("--max-model-len", "256", "--max-num-seqs", "16")
MAX_TOKENS = 64
MAX_GROWTH = 1.02
_SAMPLE_S = 0.25


def growth(resident: list[int]) -> float:
    """The last quarter over the second."""
    quarter = len(resident) // 4
    before, after = resident[quarter : 2 * quarter], resident[-quarter:]
    return statistics.median(after) / statistics.median(before)


async def watched(
    process: subprocess.Popen[str], url: str, *, clients: int, seconds: float
) -> tuple[Load, list[int]]:
    """The load, and the server's resident bytes meanwhile."""
    working = asyncio.create_task(
        load(url, clients=clients, seconds=seconds, max_tokens=MAX_TOKENS)
    )
    resident: list[int] = []
    while not working.done():
        resident.append(resident_bytes(process.pid))
        await asyncio.sleep(_SAMPLE_S)
    return working.result(), resident


def main() -> int:
    """Runs the load once; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    start = time.monotonic()
    with server(*OPTIONS) as (process, url):
        print(f"ready after {time.monotonic() - start:.1f} s", flush=True)
        done, resident = asyncio.run(
            watched(process, url, clients=arguments.clients, seconds=arguments.seconds)
        )
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=60)
    return report(done, resident, status)


def report(done: Load, resident: list[int], status: int) -> int:
    """Says what came of it; 1 if something was wrong."""
    grown = growth(resident)
    seconds = sorted(done.seconds)
    print(
        f"{len(seconds)} requests, {done.num_tokens} tokens, median "
        f"{statistics.median(seconds):.2f} s, longest {seconds[-1]:.2f} s; "
        f"{len(done.faults)} faults; resident {min(resident) / 2**20:.0f} to "
        f"{max(resident) / 2**20:.0f} MiB, last quarter over second "
        f"{100 * (grown - 1):+.2f} %; exit status {status}"
    )
    for fault in done.faults[:10]:
        print(fault)
    return int(bool(done.faults) or grown > MAX_GROWTH or status != 0)


if __name__ == "__main__":
    raise SystemExit(main())
