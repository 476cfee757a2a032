"""The highest throughput over batch sizes (FlashDecoding++Next, Fig. 11 and 12).

    python -m benchmarks.highest_throughput
    JAX_PLATFORMS=cpu python -m benchmarks.highest_throughput --out FILE --engine vllm

measures fdjax, and beside it, where they are installed, vLLM or Hugging Face's
transformers (`--engine transformers`), with made-up weights too. For these
`JAX_PLATFORMS=cpu` leaves the GPU to the engine, so that the file must be named:
`highest_throughput.json` in the device's folder of `benchmarks/results`, to stand
beside fdjax's. What a file has of other engines, models and batches is kept; `--plot`
and `--plot-batches` draw all that it has.

As many requests at once as a batch has rows, all with prompts of one length and 128
tokens of output: Fig. 12 is output tokens a second of each batch, and Fig. 11 the
highest of them. A batch whose keys and values do not fit runs with put-backs, as users
would have it, and fdjax says how many; transformers has no such thing: a batch that it
has no memory for has no tokens a second, and no larger one is tried. A model that was
made for shorter sequences gets more positions, of every engine.
"""

import argparse
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import needs, results, throughput_charts
from benchmarks.cases import Case
from benchmarks.report import load_rows
from benchmarks.tables import Row
from benchmarks.throughput_engines import (
    ENGINES,
    BatchEngine,
    BatchSettings,
    OutOfMemoryError,
)
from fdjax import device

OUTPUT = 128
MODELS = "llama2-7b,llama3-8b,qwen1.5-7b,opt-6.7b"
NAMED = ("engine", "model", "input", "output", "batch")
BATCHES = "1,4,16,64,128,256"


def measure(engine: BatchEngine, case: Case, *, repeats: int) -> Row:
    """One batch, of the median; a run before it compiles."""
    sizes = {"batch": case.batch, "input": case.context, "output": case.steps}
    try:
        engine.seconds(case)
        before = engine.put_backs and engine.put_backs()
        times = [engine.seconds(case) for _ in range(repeats)]
    except OutOfMemoryError:
        return sizes | {"tokens_per_s": None, "requests_per_s": None}
    took = statistics.median(times)
    put_back: dict[str, int] = {}
    if engine.put_backs is not None and before is not None:
        put_back = {"put_back": engine.put_backs() - before}
    return {
        **sizes,
        "tokens_per_s": round(case.batch * case.steps / took, 1),
        "requests_per_s": round(case.batch / took, 3),
        "spread": round((max(times) - min(times)) / took, 4),
        **put_back,
    }


def batches_of(
    engine: BatchEngine,
    batches: Sequence[int],
    *,
    tokens: int,
    output: int,
    repeats: int,
) -> Iterator[Row]:
    """Batches of one length of prompts, up to the first that does not fit."""
    for batch in sorted(batches):
        row = measure(engine, Case(batch, tokens, output), repeats=repeats)
        yield row
        if row["tokens_per_s"] is None:
            return


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=ENGINES, default="fdjax")
    parser.add_argument("--models", default=MODELS, help="names in configs/models")
    parser.add_argument("--inputs", default="1024,4096")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--output", type=int, default=OUTPUT)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG file, of Fig. 11")
    parser.add_argument(
        "--plot-batches", type=pathlib.Path, help="an SVG file, of Fig. 12"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every batch, and adds it to `highest_throughput.json`; draws charts.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    if given.engine == "fdjax":
        device.claim_memory(given.memory_fraction)  # before its name starts JAX
    out: pathlib.Path = given.out or (
        results.RESULTS / results.device_slug() / "highest_throughput.json"
    )
    inputs = [int(one) for one in given.inputs.split(",")]
    batches = [int(one) for one in given.batches.split(",")]
    for name in given.models.split(","):
        settings = BatchSettings(
            name, max(inputs) + given.output, max(batches), given.memory_fraction
        )
        if given.engine == "fdjax":
            needs.gpu_for(settings.config if settings.config.exists() else name)
        _measure_model(settings, given, inputs, batches, out)
    rows, device_name = load_rows(out), out.absolute().parent.name
    if given.plot is not None:
        given.plot.write_text(throughput_charts.chart(rows, device_name))
    if given.plot_batches is not None:
        given.plot_batches.write_text(throughput_charts.batches(rows, device_name))


def _measure_model(
    settings: BatchSettings,
    given: argparse.Namespace,
    inputs: Sequence[int],
    batches: Sequence[int],
    out: pathlib.Path,
) -> None:
    """All batches of one model; the engine is gone before the next one's comes."""
    engine = ENGINES[given.engine](settings)
    named: dict[str, Any] = {"engine": given.engine, "model": settings.model}
    common = named | engine.about
    try:
        for tokens in inputs:
            sizes = {"tokens": tokens, "output": given.output}
            for row in batches_of(engine, batches, **sizes, repeats=given.repeats):
                found = {**common, **row, **results.provenance()}
                results.keep(out, [found], named=NAMED)
                print({**common, **row}, flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
