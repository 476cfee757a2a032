"""The highest throughput over batch sizes (FlashDecoding++Next, Fig. 11 and 12).

As many requests at once as a batch has rows, all with prompts of one length and 128
tokens of output: Fig. 12 is output tokens a second of each batch, and Fig. 11 the
highest of them. A batch whose keys and values do not fit runs with put-backs, as users
would have it, and says how many.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import results
from benchmarks.cases import Case
from benchmarks.svg import WIDTH, bar, drawing, text, upright
from benchmarks.tables import Row
from fdjax import LLM, SamplingParams

OUTPUT = 128
MODELS = "llama2-7b,llama3-8b,qwen1.5-7b,opt-6.7b"
BATCHES = "1,4,16,64,128,256"
_LEFT, _STEP = 240, 24


def seconds(llm: LLM, case: Case) -> float:
    """The time of one batch, from handing it over to its last token."""
    prompts = case.prompts(llm.config.embedding.vocab_size).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=case.steps, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    took = time.perf_counter() - start
    assert all(len(one.outputs[0].token_ids) == case.steps for one in outputs)
    return took


def measure(llm: LLM, case: Case, *, repeats: int) -> Row:
    """One batch; its prompts are found in no cache, as the LLM must have none."""
    seconds(llm, case)  # compiles
    before = llm.engine.scheduler.num_preemptions
    times = [seconds(llm, case) for _ in range(repeats)]
    took = statistics.median(times)
    return {
        "batch": case.batch,
        "input": case.context,
        "output": case.steps,
        "tokens_per_s": round(case.batch * case.steps / took, 1),
        "requests_per_s": round(case.batch / took, 3),
        "spread": round((max(times) - min(times)) / took, 4),
        "put_back": llm.engine.scheduler.num_preemptions - before,
    }


def highest(rows: Sequence[Row]) -> list[Row]:
    """Of each engine, model and length of prompts, the row of most tokens a second."""
    best: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key = row["engine"], row["model"], row["input"]
        if key not in best or row["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = row
    return list(best.values())


def chart(rows: Sequence[Row], device_name: str) -> str:
    """Bars of the highest throughput, each with its batch."""
    best = highest(rows)
    title = f"Highest throughput, {OUTPUT} tokens of output, on {device_name}"
    return drawing(56 + _STEP * len(best), title, _parts(best, title))


def _parts(rows: Sequence[Row], title: str) -> Iterator[str]:
    span = WIDTH - _LEFT - 170
    most = max(row["tokens_per_s"] for row in rows)
    yield text(0, 18, title, kind="title")
    yield upright(_LEFT, 32, 46 + _STEP * len(rows))
    for place, row in enumerate(rows):
        y, width = 38 + _STEP * place, span * row["tokens_per_s"] / most
        words = f"{row['engine']}, {row['model']}, {row['input']} in"
        yield text(_LEFT - 10, y + 13, words, anchor="end")
        yield bar(_LEFT, y, width, 16, kind="a" if row["engine"] == "fdjax" else "b")
        told = f"{row['tokens_per_s']:,.0f} tokens/s at {row['batch']} rows"
        yield text(_LEFT + width + 6, y + 13, told, kind="faint")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS, help="names in configs/models")
    parser.add_argument("--inputs", default="1024,4096")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--output", type=int, default=OUTPUT)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every batch, and writes `highest_throughput.json` and its chart.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    slug = results.device_slug()
    out = given.out or results.RESULTS / slug / "highest_throughput.json"
    inputs = [int(one) for one in given.inputs.split(",")]
    batches = [int(one) for one in given.batches.split(",")]
    rows: list[Row] = []
    for name in given.models.split(","):
        path = pathlib.Path(f"configs/models/{name}.json")
        made_up: dict[str, Any] = {"dtype": "bfloat16", "random_weights": True}
        llm = LLM(
            path if path.exists() else name,
            max_model_len=max(inputs) + given.output,
            max_num_seqs=max(batches),
            memory_fraction=given.memory_fraction,
            enable_prefix_caching=False,
            **made_up if path.exists() else {},
        )
        for tokens in inputs:
            for batch in batches:
                case = Case(batch, tokens, given.output)
                row: dict[str, Any] = {"engine": "fdjax", "model": name}
                row |= measure(llm, case, repeats=given.repeats)
                rows.append(row | results.provenance())
                print(rows[-1], flush=True)
                results.write(out, rows)
        del llm  # before the next one takes its place
    if given.plot is not None:
        given.plot.write_text(chart(rows, slug))


if __name__ == "__main__":
    main()
