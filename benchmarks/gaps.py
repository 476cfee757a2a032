"""Whether a GPU waits under load: the time between its kernels, from a trace.

    python -m benchmarks.gaps TRACE --load conv-512 --memory-fraction 0.2

A load of `benchmarks.serving_online` runs, of which some seconds in its midst are
traced. Rows decode there all the while, so a GPU that has nothing to do waits for the
host. With little memory pages run out, and sequences are put back. The longest waits
are shown with the kernels around them: where these are the end of a step and the start
of the next, the host has launched that one too late, and else a launch waits inside.

A trace makes launches slower, so that the same is asked without one, just before:
`benchmarks.launch_log` notes when the host launches, and when that has ended. What
it did before the latest launches is shown, without and with a trace.
"""

import argparse
import asyncio
import pathlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks import launch_log, needs, results
from benchmarks.launch_log import Launch, LaunchLog
from benchmarks.online_engines import EngineSettings, Started, start_fdjax
from benchmarks.serving_online import Load, add_options, fitting_of, measured
from benchmarks.timeline import Kernel, kernel_trace
from fdjax import device

SETTLING_S = 0.1
"""What is left out after the first kernel. While a trace starts, the loop that sends
requests stands still, and so may launches: the device waits for that, not the load."""
LONG_US = (20.0, 100.0, 1000.0)
NAMED = ("load", "model", "max_num_seqs", "memory_fraction")
"""Fields in which rows of the same agree."""


class Wait(NamedTuple):
    """A time in which no kernel ran, whatever stream it has.

    Attributes:
        us: how long.
        at_ms: since the first kernel.
        before: the kernel that had ended last.
        after: the one that ended it.
    """

    us: float
    at_ms: float
    before: str
    after: str

    @property
    def shown(self) -> str:
        """As a line."""
        names = f"{self.before[:60]} -> {self.after[:60]}"
        return f"{self.us:11,.1f} us at {self.at_ms:8.1f} ms: {names}"


def settled(kernels: Sequence[Kernel], seconds: float) -> list[Kernel]:
    """Those that began in some seconds, which begin when the trace has settled."""
    begin = min((kernel.start for kernel in kernels), default=0.0) + SETTLING_S * 1e9
    end = begin + seconds * 1e9
    return [kernel for kernel in kernels if begin <= kernel.start < end]


def waits(kernels: Sequence[Kernel]) -> list[Wait]:
    """All of them, in order."""
    found = list[Wait]()
    first, *others = sorted(kernels, key=lambda kernel: kernel.start)
    last = first
    for kernel in others:
        if kernel.start > last.end:
            us, at_ms = (kernel.start - last.end) / 1e3, (last.end - first.start) / 1e6
            found.append(Wait(us, at_ms, last.name, kernel.name))
        last = max(last, kernel, key=lambda one: one.end)
    return found


def summary(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """What the waits come to.

    Raises:
        SystemExit: there is no kernel: JAX runs on no GPU, or nothing ran.
    """
    if not kernels:
        raise SystemExit("the trace has no kernels of a GPU")
    first, last = min(k.start for k in kernels), max(k.end for k in kernels)
    gaps = [wait.us for wait in waits(kernels)]
    whole_us = (last - first) / 1e3
    return {
        "traced_s": round(whole_us / 1e6, 3),
        "kernels": len(kernels),
        "waiting": round(sum(gaps) / whole_us, 5),
        "longest_us": round(max(gaps, default=0.0), 1),
        "waits_over": {f"{us:g} us": sum(gap > us for gap in gaps) for us in LONG_US},
        "waiting_over": {
            f"{us:g} us": round(sum(gap for gap in gaps if gap > us) / whole_us, 5)
            for us in LONG_US
        },
    }


@dataclass(frozen=True)
class Seen:
    """What some seconds of a load were like.

    Attributes:
        kernels: of those that were traced.
        put_back: sequences, meanwhile.
        launches: of the seconds before, and of these; none where nobody notes them.
    """

    kernels: list[Kernel]
    put_back: int
    launches: dict[str, list[Launch]]


async def traced(started: Started, load: Load, *, after: float, seconds: float) -> Seen:
    """Some seconds of a load, which is given up then, and the engine.

    What begins or ends a trace is in none of these seconds. As many before them are
    seen without one.
    """
    with LaunchLog(started.engine) if started.engine else nullcontext() as log:
        preemptions = started.preemptions or (lambda: 0)
        asked = measured(started.generate, load, vocab_size=started.vocab_size)
        running = asyncio.ensure_future(asked)
        untraced_s = min(after, seconds)
        await asyncio.sleep(after - untraced_s)
        times = [perf_counter()]
        await asyncio.sleep(untraced_s)
        times.append(perf_counter())
        with kernel_trace() as kernels:
            await asyncio.sleep(SETTLING_S)
            before = preemptions()
            times.append(perf_counter())
            await asyncio.sleep(seconds)
            times.append(perf_counter())
            put_back, over = preemptions() - before, running.done()
            running.cancel()
            await asyncio.wait([running])
            # A trace that ends while kernels run makes them fail now and then: two of
            # five did on an H200, "unspecified launch failure".
            started.close()
    if over:
        running.result()
        raise SystemExit(f"{load.name} was over in {after + seconds:g} s: trace less")
    spans = {"untraced": times[:2], "traced": times[2:]}
    noted = {way: log.between(*span) for way, span in spans.items()} if log else {}
    return Seen(settled(kernels, seconds), put_back, noted)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and adds to `gaps.json`.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    device.claim_memory(given.memory_fraction)
    needs.gpu()
    load = Load.of(given.load, fitting_of(given, given.max_model_len), seconds=60.0)
    started = start_fdjax(
        EngineSettings(
            model=given.model,
            dtype="auto",
            max_model_len=given.max_model_len,
            max_num_seqs=given.max_num_seqs,
            memory_fraction=given.memory_fraction,
        )
    )
    try:
        seen = asyncio.run(
            traced(started, load, after=given.after, seconds=given.seconds)
        )
    finally:
        started.close()
    row = {
        "load": load.name,
        "model": pathlib.Path(given.model).stem,
        "max_num_seqs": given.max_num_seqs,
        "memory_fraction": given.memory_fraction,
        **summary(seen.kernels),
        **{way: launch_log.summary(noted) for way, noted in seen.launches.items()},
        "preemptions": seen.put_back,
        "kv_tokens": started.about["kv_tokens"],
        **results.provenance(),
    }
    print(row)
    for wait in sorted(waits(seen.kernels), reverse=True)[: given.list]:
        print(wait.shown)
    for way, noted in seen.launches.items():
        for one in launch_log.late(noted)[: given.list]:
            print(f"{way}: {one.shown}")
    out = given.out or results.RESULTS / results.device_slug() / "gaps.json"
    results.keep(out, [row], named=NAMED)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--load", default="conv-512")
    parser.add_argument("--after", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="that are traced")
    parser.add_argument("--list", type=int, default=10, help="of the longest waits")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
