"""What each kernel of a decode step costs, from a trace of the device.

In a chain whose kernels overlap, a kernel's own duration counts its waiting too. What
it costs the step is its advance: from the end of the kernel before to its own end.
"""

import argparse
import collections
import contextlib
import itertools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax

from benchmarks import needs, results
from benchmarks.cases import parse_cases
from benchmarks.decode import PAGE_SIZE, Bench
from fdjax import device
from fdjax.engine.programs import Programs
from fdjax.serve.loading import load_decoder
from fdjax.serve.setup import Settings

STEPS = PAGE_SIZE


class Kernel(NamedTuple):
    """One launch; nanoseconds."""

    start: float
    end: float
    name: str


def kernels_of(folder: str) -> list[Kernel]:
    """Every kernel of a trace, in order of their ends."""
    (path,) = pathlib.Path(folder).glob("**/*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    found = [
        Kernel(event.start_ns, event.start_ns + event.duration_ns, event.name)
        for plane in data.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]
    return sorted(found, key=lambda kernel: kernel.end)


@contextlib.contextmanager
def kernel_trace() -> Generator[list[Kernel]]:
    """Traces a block; the list has its kernels once that has ended.

    What Python and the host's own threads do is not recorded, as it is by default: that
    made calls of JAX 2.2 times slower on a CPU, and a device then waits for the host
    that did not before.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = options.host_tracer_level = 0
    kernels = list[Kernel]()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            yield kernels
        kernels += kernels_of(folder)


def device_runs(
    run: Callable[[], Any], *, launches: int, at_least: int = 1
) -> list[tuple[Kernel, ...]]:
    """The kernels of each run of a program, one run after the other.

    Args:
        run: launches the program, which has been compiled.
        launches: how often.
        at_least: kernels that a run has.

    Raises:
        RuntimeError: runs have fewer kernels, as on a CPU, or not all as many.
    """
    with kernel_trace() as kernels:
        for _ in range(launches):
            jax.block_until_ready(run())
    each, rest = divmod(len(kernels), launches)
    if each < at_least or rest:
        raise RuntimeError(
            f"{len(kernels)} kernels in {launches} runs of {at_least} or more"
        )
    return [*itertools.batched(kernels, each)]


def span_us(kernels: Sequence[Kernel]) -> float:
    """Microseconds from the first kernel of a run to its last."""
    return (kernels[-1].end - kernels[0].start) / 1e3


def busy_us(kernels: Sequence[Kernel]) -> list[float]:
    """Microseconds that each kernel adds to those in which any kernel of a run is.

    What the device waits for between them is in none.
    """
    added, reached = list[float](), 0.0
    for kernel in kernels:
        added.append((kernel.end - max(reached, kernel.start)) / 1e3)
        reached = kernel.end
    return added


def advances(kernels: list[Kernel]) -> dict[str, list[float]]:
    """Microseconds by which each launch moved the end of all work."""
    moved: dict[str, list[float]] = collections.defaultdict(list)
    for before, kernel in itertools.pairwise(kernels):
        moved[kernel.name].append((kernel.end - before.end) / 1e3)
    return moved


def summary(kernels: list[Kernel], steps: int) -> list[dict[str, Any]]:
    """Each kernel's share of a step, largest first."""
    durations: dict[str, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        durations[kernel.name].append((kernel.end - kernel.start) / 1e3)
    rows = [
        {
            "kernel": name,
            "launches": round(len(moved) / steps, 1),
            "us_per_step": round(sum(moved) / steps, 1),
            "advance_us": round(statistics.median(moved), 2),
            "duration_us": round(statistics.median(durations[name]), 2),
        }
        for name, moved in advances(kernels).items()
    ]
    return sorted(rows, key=lambda row: -row["us_per_step"])


def one_layer(kernels: list[Kernel], marker: str) -> list[dict[str, Any]]:
    """The kernels of a layer in the middle of the trace, from its start."""
    ends = [i for i, kernel in enumerate(kernels) if marker in kernel.name]
    if len(ends) < 2:
        return []
    middle = len(ends) // 2
    layer = kernels[ends[middle - 1] + 1 : ends[middle] + 1]
    zero = kernels[ends[middle - 1]].end
    return [
        {
            "kernel": kernel.name,
            "start_us": round((kernel.start - zero) / 1e3, 2),
            "end_us": round((kernel.end - zero) / 1e3, 2),
        }
        for kernel in layer
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--cases", default="1x1024,64x1024,256x1024")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--marker", default="attention", help="once a layer")
    arguments = parser.parse_args()
    device.claim_memory(0.9)
    needs.gpu()
    settings = Settings.of(arguments.model, dtype="auto")
    made_up = pathlib.Path(arguments.model).suffix == ".json"
    model = load_decoder(settings, random_weights=made_up)
    programs = Programs(model, steps_per_launch=1)
    out = arguments.out or results.RESULTS / results.device_slug() / "timeline.json"
    rows: list[dict[str, Any]] = []
    for case in parse_cases(arguments.cases, steps=STEPS):
        bench = Bench(model, programs, case)
        bench.prefill()
        bench.rewind()
        bench.decode()
        bench.rewind()
        with kernel_trace() as kernels:
            bench.decode()
        row = {
            "batch": case.batch,
            "context": case.context,
            "ms_per_step": round(span_us(kernels) / STEPS / 1e3, 3),
            "kernels": summary(kernels, STEPS),
            "layer": one_layer(kernels, arguments.marker),
            **results.provenance(),
        }
        rows.append(row)
        show(row)
        results.write(out, rows)


def show(row: dict[str, Any]) -> None:
    """A short table."""
    print(f"{row['batch']}x{row['context']}: {row['ms_per_step']} ms", flush=True)
    for kernel in row["kernels"][:16]:
        print(
            f"  {kernel['us_per_step']:9.1f} us/step {kernel['launches']:6.1f} x "
            f"{kernel['advance_us']:8.2f} ({kernel['duration_us']:8.2f})  "
            f"{kernel['kernel'][:90]}"
        )
    for kernel in row["layer"]:
        print(
            f"    {kernel['start_us']:8.2f} {kernel['end_us']:8.2f} "
            f"{kernel['kernel'][:80]}"
        )


if __name__ == "__main__":
    main()
