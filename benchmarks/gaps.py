"""Whether a GPU waits under load: the time between its kernels, from a trace.

    python -m benchmarks.gaps TRACE --load conv-512 --memory-fraction 0.2

A load of `benchmarks.serving_online` runs, of which some seconds in its midst are
traced. Rows decode there all the while, so a GPU that has nothing to do waits for the
host. With little memory pages run out, and sequences are put back.
"""

import argparse
import asyncio
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import results
from benchmarks.online_engines import EngineSettings, Started, start_fdjax
from benchmarks.serving_online import SKIPPED, Load, fitting_of, measured
from benchmarks.timeline import Kernel, kernels_of

LONG_US = (20.0, 100.0, 1000.0)
NAMED = ("load", "model", "max_num_seqs", "memory_fraction")
"""Fields in which rows of the same agree."""


def waits(kernels: Sequence[Kernel]) -> list[float]:
    """Microseconds in which no kernel ran, each time, whatever stream it has."""
    found, end = list[float](), None
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        if end is not None and kernel.start > end:
            found.append((kernel.start - end) / 1e3)
        end = kernel.end if end is None else max(end, kernel.end)
    return found


def summary(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """What the waits come to.

    Raises:
        SystemExit: there is no kernel: JAX runs on no GPU, or nothing ran.
    """
    if not kernels:
        raise SystemExit("the trace has no kernels of a GPU")
    first, last = min(k.start for k in kernels), max(k.end for k in kernels)
    gaps = waits(kernels)
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


async def traced(
    started: Started, load: Load, *, after: float, seconds: float
) -> tuple[list[Kernel], int]:
    """The kernels of some seconds of a load, which is given up then.

    Returns:
        They, and how many sequences were put back in these seconds.
    """
    preemptions = started.preemptions or (lambda: 0)
    asked = measured(started.generate, load, vocab_size=started.vocab_size)
    running = asyncio.ensure_future(asked)
    await asyncio.sleep(after)
    with tempfile.TemporaryDirectory() as folder:
        before = preemptions()
        with jax.profiler.trace(folder):
            await asyncio.sleep(seconds)
        put_back = preemptions() - before
        if running.done():
            running.result()
            raise SystemExit(
                f"{load.name} was over in {after + seconds:g} s: trace less"
            )
        running.cancel()
        return kernels_of(folder), put_back


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and adds to `gaps.json`.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    load = Load.of(given.load, fitting_of(given), seconds=60.0)
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
        kernels, put_back = asyncio.run(
            traced(started, load, after=given.after, seconds=given.seconds)
        )
    finally:
        started.close()
    row = {
        "load": load.name,
        "model": pathlib.Path(given.model).stem,
        "max_num_seqs": given.max_num_seqs,
        "memory_fraction": given.memory_fraction,
        **summary(kernels),
        "preemptions": put_back,
        "kv_tokens": started.about["kv_tokens"],
        **results.provenance(),
    }
    print(row)
    out = given.out or results.RESULTS / results.device_slug() / "gaps.json"
    results.keep(out, [row], named=NAMED)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--load", default="conv-512")
    parser.add_argument("--after", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="that are traced")
    parser.add_argument("--skip", type=int, default=SKIPPED)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
