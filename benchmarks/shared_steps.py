"""Steps of rows that share the beginning of their prompts, read by each and read once.

A case is `rows x shared + own`: prompts of `shared` tokens, the same for all, and `own`
others, through the engine with its cache of prefixes. Measured is the time between two
steps that are read, while all rows decode: by an engine without
`shared_prefix_reads` and by one with it. Where nothing is shared it shows what looking
for it costs.
"""

import argparse
import dataclasses
import gc
import itertools
import pathlib
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import needs, results
from benchmarks.made_up import positions
from benchmarks.serving_steps import greedy
from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.engine.policy import StepPolicy
from fdjax.engine.sequence import EngineSequence
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import load_decoder, make_engine
from fdjax.serve.setup import Settings

CASES = "64x8192+128,64x2048+128,8x32768+128,16x1024+1024,64x0+1024"
# Steps at the beginning and at the end, in which rows come and go.
EDGE = 8


@dataclasses.dataclass(frozen=True)
class SharedCase:
    """One measurement: rows, the tokens that they share, and each row's own."""

    rows: int
    shared: int
    own: int

    @staticmethod
    def read(text: str) -> "SharedCase":
        """Of "64x8192+128"."""
        rows, _, tokens = text.partition("x")
        shared, _, own = tokens.partition("+")
        return SharedCase(int(rows), int(shared), int(own))

    def __str__(self) -> str:
        return f"{self.rows}x{self.shared}+{self.own}"

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Random; the same in every run."""
        draw = np.random.default_rng(self.rows * 1_000_003 + self.shared)
        start = draw.integers(vocab_size, size=self.shared).tolist()
        others = draw.integers(vocab_size, size=(self.rows, self.own)).tolist()
        return [start + own for own in others]


def step_times(engine: Engine, case: SharedCase, *, steps: int) -> list[float]:
    """Milliseconds of the steps in which all rows decode, as they were read.

    Args:
        engine: without work.
        case: of the prompts, which are in its cache behind the first row.
        steps: tokens of each row beside those of the edges.
    """
    first, *others = case.prompts(engine.config.embedding.vocab_size)
    params = greedy(steps + 2 * EDGE)
    engine.add(engine.request(0, first, greedy(1)))
    while engine.has_work:
        engine.step()
    rows = [engine.add(engine.request(0, one, params)) for one in (first, *others)]
    counts: dict[EngineSequence, int] = dict.fromkeys(rows, 0)
    read: list[tuple[float, int]] = []
    while engine.has_work:
        for sequence, new in engine.step():
            counts[sequence] += len(new.token_ids)
        least = min(counts.values())
        if least >= EDGE and max(counts.values()) <= steps + EDGE:
            read.append((time.perf_counter(), least))
    return [
        (after - before) * 1e3 / (many - few)
        for (before, few), (after, many) in itertools.pairwise(read)
        if many > few
    ]


def measure(
    settings: Settings, model: Decoder, cases: list[SharedCase], *, steps: int
) -> list[dict[str, Any]]:
    """One object for each case.

    Args:
        settings: with room for all cases.
        model: loaded.
        cases: to be measured.
        steps: of which the median is taken.
    """
    found: dict[bool, list[list[float]]] = {}
    for shared in (False, True):
        policy = StepPolicy(shared_reads=shared)
        settings = dataclasses.replace(settings, policy=policy)
        engine = make_engine(settings, model, settings.memory_plan(), seed=0)
        engine.warm_up([greedy(1)])
        found[shared] = [step_times(engine, case, steps=steps) for case in cases]
        del engine
        gc.collect()  # the next one needs the memory
    return [
        _row(case, each, once)
        for case, each, once in zip(cases, found[False], found[True], strict=True)
    ]


def _row(case: SharedCase, each: list[float], once: list[float]) -> dict[str, Any]:
    ms_each, ms_once = statistics.median(each), statistics.median(once)
    return {
        "case": str(case),
        "ms_each": round(ms_each, 3),
        "ms_once": round(ms_once, 3),
        "faster_by": round(ms_each / ms_once, 3),
        "spread_each": _spread(each),
        "spread_once": _spread(once),
        **results.provenance(),
    }


def _spread(times: list[float]) -> float:
    """From the first to the last tenth, by the median."""
    tenths = statistics.quantiles(times, n=10)
    return round((tenths[-1] - tenths[0]) / statistics.median(times), 4)


def main() -> None:
    """Writes `shared_steps.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    device.claim_memory(0.93)
    needs.gpu_for(asked.model)
    cases = [SharedCase.read(one) for one in asked.cases.split(",")]
    longest = max(case.shared + case.own for case in cases) + asked.steps + 2 * EDGE
    made_up = asked.model.endswith(".json")
    settings = Settings.of(
        asked.model,
        hf_overrides=positions(asked.model, longest) if made_up else None,
        max_model_len=longest,
        max_num_seqs=max(case.rows for case in cases),
    )
    model = load_decoder(settings, random_weights=made_up)
    rows = measure(settings, model, cases, steps=asked.steps)
    for row in rows:
        print({"model": pathlib.Path(asked.model).stem, **row}, flush=True)
    out = asked.out or results.RESULTS / results.device_slug() / "shared_steps.json"
    results.write(out, rows)


if __name__ == "__main__":
    main()
