"""Room for keys and values, and the longest sequences: planned, and as the device says.

`--case NAME` measures one case and adds it to `memory.json`:

* `llama3-8b-room`: 0.90 of the device for 256 rows; an engine with it is warmed up.
* `<model>-80GiB`: the longest single sequence of that budget, prompt in chunks, run to
  its end; `<model>-device`: likewise, of what the device offers.
* `<case>-one-call-<way>`: the longest prompt of one call (`memory_one_call`), whose
  first token's time has that of compiling its program in it.
* `curves`: the three ways of FlashDecoding++Next's Fig. 19 by arithmetic; none runs.
  `--described "NVIDIA H200"` plans for that device, which need not be here.
* `plot`: draws what there is of these.

A sequence of 0.93 of an H200 takes minutes: `--tokens` runs a shorter one in the same
room, which is a case of its own, `<case>-<tokens>`.
"""

import argparse
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from benchmarks import memory_chart, needs, results
from benchmarks.described import described
from benchmarks.memory_one_call import OneCall, OneCallWay, one_call
from benchmarks.memory_plans import (
    arena_prompt,
    longest,
    planned_bytes,
    room_tokens,
    separate_prompt,
    settings_of,
)
from benchmarks.report import load_rows
from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.generate.params import SamplingParams
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import load_decoder, make_engine
from fdjax.serve.setup import Settings

type Row = dict[str, Any]

LLAMA, QWEN = "configs/models/llama3-8b.json", "configs/models/qwen1.5-7b.json"
ROWS = 256
GIB = 2**30


@dataclass(frozen=True)
class MemoryCase:
    """What to measure.

    Attributes:
        kind: "room" of many rows, the "longest" sequence, or the longest prompt of one
            call, with a way of `memory_one_call`.
        model: a folder, or a configuration whose weights are made up.
        budget_gib: `None`: what the device offers.
        fraction: of the device's memory that JAX takes.
    """

    kind: Literal["room", "longest"] | OneCallWay
    model: str
    budget_gib: float | None = None
    fraction: float = 0.93

    @property
    def budget_bytes(self) -> int | None:
        """`budget_gib` in bytes."""
        return None if self.budget_gib is None else int(self.budget_gib * GIB)


CASES = {
    "llama3-8b-room": MemoryCase("room", LLAMA, fraction=0.9),
    "llama3-8b-80GiB": MemoryCase("longest", LLAMA, 80),
    "qwen1.5-7b-80GiB": MemoryCase("longest", QWEN, 80),
    "llama3-8b-device": MemoryCase("longest", LLAMA),
    "qwen1.5-7b-device": MemoryCase("longest", QWEN),
    "llama3-8b-80GiB-one-call-arena": MemoryCase("arena", LLAMA, 80),
    "llama3-8b-80GiB-one-call-apart": MemoryCase("apart", LLAMA, 80),
    "llama3-8b-80GiB-one-call-separate": MemoryCase("separate", LLAMA, 80),
    "qwen1.5-7b-80GiB-one-call-arena": MemoryCase("arena", QWEN, 80),
    "qwen1.5-7b-80GiB-one-call-separate": MemoryCase("separate", QWEN, 80),
}


def measure(name: str, case: MemoryCase, *, tokens: int | None, output: int) -> Row:
    """One object of the results.

    Args:
        name: of the case.
        case: what to measure.
        tokens: of the sequence run, prompt and output; `None`: the longest.
        output: of these.
    """
    if case.kind == "room":
        settings = Settings.of(
            case.model, max_num_seqs=ROWS, memory_fraction=case.fraction
        )
        plan = settings.memory_plan(case.budget_bytes)
        _start(case, settings, plan)
        return _row(name, plan, tokens=room_tokens(plan))
    settings = settings_of(case.model, memory_fraction=case.fraction)
    greedy = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    if case.kind != "longest":
        asked = one_call(settings, case.kind, case.budget_bytes)
        return _measure_one_call(name, asked, _model(case, settings), greedy)
    plan = longest(settings, case.budget_bytes)
    engine = _start(case, settings, plan, greedy)
    run = min(tokens or plan.max_model_len, plan.max_model_len)
    ttft_s, ms_per_token = run_sequence(engine, run - output, greedy)
    return _row(
        name, plan, tokens=run, output=output, ttft_s=ttft_s, ms_per_token=ms_per_token
    )


def _measure_one_call(
    name: str, asked: OneCall, model: Decoder, params: SamplingParams
) -> Row:
    """Of a prompt in one call, and the outputs after it."""
    engine = asked.engine(model)
    with asked.running(engine):
        # The first launch of decode steps compiles theirs.
        ttft_s, ms = run_sequence(engine, asked.num_prompt, params, num_skipped=1)
    output = params.max_tokens or 0
    tokens = asked.num_prompt + output
    times = {"ttft_s": ttft_s, "ms_per_token": ms}
    return _row(name, asked.plan, tokens=tokens, output=output, **times)


def _model(case: MemoryCase, settings: Settings) -> Decoder:
    made_up = pathlib.Path(case.model).suffix == ".json"
    return load_decoder(settings, random_weights=made_up)


def _start(
    case: MemoryCase, settings: Settings, plan: MemoryPlan, *params: SamplingParams
) -> Engine:
    """An engine that is ready for such requests; for any, where there are none."""
    sized = replace(settings, max_model_len=plan.max_model_len)
    engine = make_engine(sized, _model(case, sized), plan, prefix_caching=False)
    engine.warm_up(params or None)
    return engine


def run_sequence(
    engine: Engine, num_prompt: int, params: SamplingParams, *, num_skipped: int = 0
) -> tuple[float, float]:
    """Seconds to the first token, and milliseconds of each after the first launch's.

    Args:
        engine: warmed up, without work.
        num_prompt: random tokens to begin with.
        params: whose `max_tokens` all come.
        num_skipped: launches after the first whose tokens are not counted.
    """
    vocabulary = engine.config.embedding.vocab_size
    prompt = np.random.default_rng(0).integers(0, vocabulary, num_prompt).tolist()
    request = engine.request(0, prompt, params)
    counts, times = list[int](), list[float]()
    start = time.perf_counter()
    engine.add(request)
    while engine.has_work:
        if came := sum(len(new.token_ids) for _, new in engine.step()):
            counts.append(came)
            times.append(time.perf_counter())
    assert sum(counts) == params.max_tokens, f"{sum(counts)} tokens came"
    since = min(num_skipped, len(times) - 1)
    later = sum(counts[since + 1 :])
    ms = (times[-1] - times[since]) * 1e3 / later if later else 0.0
    return times[0] - start, ms


def _row(
    name: str,
    plan: MemoryPlan,
    *,
    tokens: int,
    output: int = 0,
    ttft_s: float | None = None,
    ms_per_token: float | None = None,
) -> Row:
    """With the device's peak, where it tells one."""
    planned = planned_bytes(plan)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "case": name,
        "tokens": tokens,
        "prompt_tokens": tokens - output if output else None,
        "room_tokens": room_tokens(plan),
        "budget_bytes": plan.budget_bytes,
        "planned_bytes": planned,
        "peak_bytes": peak,
        "peak_over_plan": peak and round(peak / planned - 1, 5),
        "ttft_s": ttft_s and round(ttft_s, 3),
        "ms_per_token": ms_per_token and round(ms_per_token, 4),
        **results.provenance(),
    }


def curves(model: str, budget_bytes: int) -> list[Row]:
    """The ways of Fig. 19 by arithmetic: the longest prompt, and the final length.

    Args:
        model: a folder, or a configuration.
        budget_bytes: of one device.
    """
    settings = settings_of(model)
    plan = longest(settings, budget_bytes)
    final = plan.max_model_len
    ways = {"separate": (separate_prompt(settings, budget_bytes),) * 2}
    if plan.layout.lent:  # else steps have their memory beside the array
        ways["arena"] = (arena_prompt(settings, plan), final)
    ways["chunked"] = (final, final)
    name = f"{pathlib.Path(model).stem}-{budget_bytes / GIB:g}GiB"
    return [
        {
            "case": f"{name}-{way}",
            "tokens": last,
            "prompt_tokens": prompt,
            "budget_bytes": budget_bytes,
            "what": f"arithmetic for {device.kind()}, on {_machine()}",
            **results.provenance(),
        }
        for way, (prompt, last) in ways.items()
    ]


def _machine() -> str:
    """The device that is here, whatever is described."""
    return jax.devices()[0].device_kind


def keep(out: pathlib.Path, rows: Sequence[Row]) -> None:
    """Replaces what the file has of the same cases."""
    new = {row["case"] for row in rows}
    kept = [row for row in load_rows(out) if row["case"] not in new]
    results.write(out, [*kept, *rows])


def main(given: Sequence[str] | None = None) -> None:
    """Measures a case and adds it to `memory.json`.

    Args:
        given: of the command line.
    """
    asked = _parsed(given)
    case = CASES.get(asked.case)
    if case is not None:
        device.claim_memory(case.fraction)
        needs.gpu_for(case.model)
    with described(asked.described):
        out = asked.out or results.RESULTS / results.device_slug() / "memory.json"
        if asked.case == "plot":
            plot = asked.plot or out.with_suffix(".svg")
            plot.write_text(memory_chart.chart(load_rows(out), out.parent.name))
            return
        if case is None:
            rows = [row for model in (LLAMA, QWEN) for row in curves(model, 80 * GIB)]
        else:
            name = (
                asked.case if asked.tokens is None else f"{asked.case}-{asked.tokens}"
            )
            rows = [measure(name, case, tokens=asked.tokens, output=asked.output)]
    for row in rows:
        print(row, flush=True)
    keep(out, rows)


def _parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=(*CASES, "curves", "plot"), required=True)
    parser.add_argument("--tokens", type=int, help="of the sequence; all by default")
    parser.add_argument("--output", type=int, default=32, help="tokens of these")
    parser.add_argument("--described", help="a GPU to plan for, of `curves`")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG file, of `plot`")
    asked = parser.parse_args(given)
    if asked.output < 1 or (asked.tokens or asked.output + 1) <= asked.output:
        parser.error("--tokens must be more than --output, and that 1 at least")
    if asked.described is not None and asked.case in CASES:
        parser.error(f"{asked.case} runs; only what is arithmetic can be described")
    return asked


if __name__ == "__main__":
    main()
