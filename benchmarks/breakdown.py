"""Where the time of a run goes, by kind of operation (FlashDecoding++Next, Fig. 4).

A run is 16 prompts and 128 tokens of each, as in the paper. Prefill and decode steps
are traced on the device; a kernel costs its advance (`benchmarks.timeline`), so that
the shares of kernels that overlap add up to the run.
"""

import argparse
import collections
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import needs, results
from benchmarks.cases import Case
from benchmarks.decode import Bench
from benchmarks.svg import WIDTH, bar, drawing, text, upright
from benchmarks.tables import Row
from benchmarks.timeline import Kernel, advances, kernel_trace
from fdjax import device
from fdjax.engine.programs import Programs
from fdjax.serve.loading import load_decoder
from fdjax.serve.setup import Settings

BATCH, OUTPUT = 16, 128
MODELS = ("llama2-7b", "llama3-8b", "qwen1.5-7b", "opt-6.7b")
KINDS = (
    ("attention", ("attention", "shared_prefix", "rope")),
    ("GEMM", ("matmul", "gemm", "gemv", "flat", "nvjet", "cublas", "cutlass")),
    ("norm", ("norm",)),
)
"""Kinds of operations, and words in the names of their kernels; the rest is other."""
OTHER = "other"
_COLOURS = dict(zip(("GEMM", "other", "attention", "norm"), "abcd", strict=True))
_LEFT, _STEP = 190, 30


def kind_of(kernel: str) -> str:
    """The kind of operation that a kernel is part of."""
    words = kernel.lower()
    for kind, parts in KINDS:
        if any(part in words for part in parts):
            return kind
    return OTHER


def milliseconds(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Of each kind: by how much its kernels moved the end of all work."""
    spent: dict[str, float] = collections.defaultdict(float)
    if kernels:
        spent[kind_of(kernels[0].name)] += (kernels[0].end - kernels[0].start) / 1e6
    for name, moved in advances(list(kernels)).items():
        spent[kind_of(name)] += sum(moved) / 1e3
    return dict(spent)


def measure(bench: Bench) -> Iterator[tuple[str, dict[str, float]]]:
    """Milliseconds by kind of both phases, compiled and run before."""
    bench.prefill()
    bench.rewind()
    bench.decode()
    for phase in ("prefill", "decode"):
        bench.rewind()
        with kernel_trace() as kernels:
            bench.prefill() if phase == "prefill" else bench.decode()
        if not kernels:
            raise SystemExit("the trace has no kernel of a GPU: run this on one")
        yield phase, milliseconds(kernels)


def chart(rows: Sequence[Row], device_name: str) -> str:
    """A bar a run, divided by kinds; prefill and decoding together."""
    title = f"Where {BATCH} prompts and {OUTPUT} tokens of each spend time"
    return drawing(
        90 + _STEP * len(rows), title, _parts(rows, f"{title}, on {device_name}")
    )


def _parts(rows: Sequence[Row], title: str) -> Iterator[str]:
    span = WIDTH - _LEFT - 90
    yield text(0, 18, title, kind="title")
    for place, (kind, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 110 * place
        yield bar(x, 32, 10, 10, kind=colour) + text(x + 16, 41, kind)
    for quarter in range(5):
        x = _LEFT + span * quarter / 4
        yield upright(x, 56, 66 + _STEP * len(rows))
        words = f"{25 * quarter} %"
        y = 82 + _STEP * len(rows)
        yield text(x, y, words, kind="faint", anchor="middle")
    for place, row in enumerate(rows):
        y, x = 62 + _STEP * place, float(_LEFT)
        total = sum(sum(row[phase].values()) for phase in ("prefill", "decode"))
        yield text(
            _LEFT - 10, y + 14, f"{row['model']}, {row['context']}", anchor="end"
        )
        for kind, colour in _COLOURS.items():
            spent = row["prefill"].get(kind, 0.0) + row["decode"].get(kind, 0.0)
            if spent:
                yield bar(x, y, span * spent / total, 18, kind=colour)
                x += span * spent / total
        yield text(x + 6, y + 14, f"{total:,.0f} ms", kind="faint")


def main() -> None:
    """Traces every model and context, and writes `breakdown.json` and its chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--contexts", default="1024,4096")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG file")
    arguments = parser.parse_args()
    device.claim_memory(0.9)
    needs.gpu()
    slug = results.device_slug()
    out = arguments.out or results.RESULTS / slug / "breakdown.json"
    rows: list[Row] = []
    for name in arguments.models.split(","):
        settings = Settings.of(f"configs/models/{name}.json", dtype="bfloat16")
        model = load_decoder(settings, random_weights=True)
        programs = Programs(model, steps_per_launch=1)
        for context in map(int, arguments.contexts.split(",")):
            bench = Bench(model, programs, Case(BATCH, context, OUTPUT))
            phases: dict[str, Any] = {
                phase: {kind: round(spent, 3) for kind, spent in found.items()}
                for phase, found in measure(bench)
            }
            row = {"model": name, "batch": BATCH, "output": OUTPUT, "context": context}
            rows.append(row | phases | results.provenance())
            print(rows[-1], flush=True)
            results.write(out, rows)
            del bench
        del model, programs
    if arguments.plot is not None:
        arguments.plot.write_text(chart(rows, slug))


if __name__ == "__main__":
    main()
