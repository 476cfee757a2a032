"""Searches with beams: the figures of "Efficient LLM inference solution on Intel GPU".

`python -m benchmarks.beams steps` measures prompts x beams (1 x 4, 8 x 8, 1 x 64 and
1 x 512, beside as many ordinary rows); `fig6` the attention over prompts, in GB/s;
`fig7` latencies over prompt lengths, `fig8` over models and beams, `fig9` requests a
second over prompts at a time. With `--peer transformers` or `--peer vllm` these do the
same. Models have random weights: nothing ends before its last token. `plot` draws what
was measured into `docs/plots`.
"""

import argparse
import dataclasses
import gc
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from benchmarks import beam_charts, needs, results
from benchmarks.beam_attention import measure_attention
from benchmarks.beam_peers import PEERS
from benchmarks.report import REPOSITORY, load_rows
from benchmarks.searches import Run, Search, Times
from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_fields import MAX_BEAMS
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.llm import LLM

PLOTS = REPOSITORY / "docs" / "plots"
LLAMA = "configs/models/llama3-8b.json"
PAPERS = ("gpt-j-6b", "llama2-13b", "opt-30b")
FEW_TOKENS = 32  # made after prompts of every length
# Of one measurement: the next with the same takes its place in the file.
NAMED = ("case", "engine", "model", "prompts", "beams", "context", "tokens")


def engine_run(engine: Engine) -> Run:
    """Searches in an engine, as whoever asks it sees them."""

    def run(search: Search) -> Times:
        common: dict[str, Any] = {"max_tokens": search.tokens, "ignore_eos": True}
        params: Any = SamplingParams(temperature=0.0, **common)
        if search.beams:
            params = BeamSearchParams(beam_width=search.beams, n=1, **common)
        prompts = search.drawn(engine.config.embedding.vocab_size).tolist()
        sequences = [
            engine.add(engine.request(0, prompt, params)) for prompt in prompts
        ]
        start, first = time.perf_counter(), None
        while engine.has_work:
            engine.step()
            if first is None and all(map(_has_begun, sequences)):
                first = time.perf_counter()
        assert first is not None
        return Times(first - start, time.perf_counter() - start)

    return run


def _has_begun(sequence: EngineSequence) -> bool:
    if sequence.is_search:
        return bool(len(sequence.search.traces[0]))
    return len(sequence.tokens) > sequence.num_prompt


def measure(run: Run, search: Search, *, repeats: int) -> dict[str, Any]:
    """One result object, of the median; a run before it compiles."""
    run(search)
    times = [run(search) for _ in range(repeats)]
    whole = statistics.median(one.whole_s for one in times)
    step = statistics.median(
        (one.whole_s - one.first_s) / max(search.tokens - 1, 1) for one in times
    )
    first = statistics.median(one.first_s for one in times)
    spread = max(t.whole_s for t in times) - min(t.whole_s for t in times)
    return {
        **dataclasses.asdict(search),
        "first_ms": round(first * 1e3, 3),
        "ms_per_step": round(step * 1e3, 4),
        "requests_per_s": round(search.prompts / whole, 4),
        "spread": round(spread / whole, 4) if repeats > 1 else None,
        **results.provenance(),
    }


def searches(case: str, *, context: int, tokens: int) -> list[Search]:
    """What a figure measures; `steps` has each width beside as many ordinary rows."""
    match case:
        case "steps":
            pairs = ((1, 4), (8, 8), (1, 64), (1, 512))
            rows = (1, 4, 64, 512)
            found = [Search(p, b, context, tokens) for p, b in pairs]
            return found + [Search(p, 0, context, tokens) for p in rows]
        case "fig7":
            longest = context - FEW_TOKENS
            lengths = (32, 64, 128, 256, 512, 1024, 2048, longest)
            return [Search(1, 4, n, FEW_TOKENS) for n in lengths if n <= longest]
        case "fig8":
            return [Search(1, beams, context, tokens) for beams in (1, 4)]
        case _:
            batches = (1, 2, 4, 8, 16, 32, 64)
            return [Search(batch, 4, context, tokens) for batch in batches]


def engine_of(model: str, some: Sequence[Search], **options: Any) -> Engine:
    """An engine with room for the widest, without cached prefixes."""
    rows = max(one.prompts * max(one.beams, 1) for one in some)
    longest = max(one.context + one.tokens for one in some)
    llm = LLM(
        model,
        random_weights=True,
        enable_prefix_caching=False,
        max_num_seqs=max(rows, 2),
        max_beam_width=MAX_BEAMS,
        max_model_len=longest,
        **options,
    )
    return llm.engine


def main(given: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measures a figure and adds its results to `beams.json`."""
    asked = _parsed(given)
    device.claim_memory(0.9)  # `LLM`'s share, before the device's name starts JAX
    out = asked.out or results.RESULTS / results.device_slug() / "beams.json"
    context = asked.context or (4096 if asked.case == "fig7" else 1024)
    rows: list[dict[str, Any]] = []
    if asked.case == "plot":
        beam_charts.write(load_rows(out), PLOTS, out.parent.name)
        return rows
    if asked.case == "fig6":
        needs.gpu()
        rows = measure_attention(context=context, tokens=asked.tokens)
    for model in [] if rows else asked.model or _models(asked.case):
        for row in _measured(asked, model, context):
            rows.append(row)
            print(row, flush=True)
            results.keep(out, rows, named=NAMED)
        jax.clear_caches()
        gc.collect()  # an engine refers to itself, and the next has no room beside it
    results.keep(out, rows, named=NAMED)
    return rows


def _parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    cases = ("steps", "fig6", "fig7", "fig8", "fig9", "plot")
    parser.add_argument("case", choices=cases)
    parser.add_argument("--model", action="append")
    parser.add_argument("--context", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--most-rows", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--widths", help="of beams of one prompt, in place of a case's")
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args(given)


def _measured(
    asked: argparse.Namespace, model: str, context: int
) -> Iterator[dict[str, Any]]:
    """The results of one model."""
    some = _searches(asked, context)
    run, engine = _run_of(model, some, peer=asked.peer)
    about = {"case": asked.case, "engine": engine, "model": pathlib.Path(model).stem}
    for one in some:
        yield {**about, **measure(run, one, repeats=asked.repeats)}


def _searches(asked: argparse.Namespace, context: int) -> list[Search]:
    if asked.widths is not None:
        widths = map(int, asked.widths.split(","))
        return [Search(1, width, context, asked.tokens) for width in widths]
    return [
        one
        for one in searches(asked.case, context=context, tokens=asked.tokens)
        if one.prompts * max(one.beams, 1) <= asked.most_rows
    ]


def _run_of(model: str, some: Sequence[Search], *, peer: str | None) -> tuple[Run, str]:
    if peer is not None:
        return PEERS[peer](model, some)
    needs.gpu_for(model)
    return engine_run(engine_of(model, some)), "fdjax"


def _models(case: str) -> list[str]:
    if case == "steps":
        return [LLAMA]
    names = ("llama2-13b",) if case == "fig7" else PAPERS
    return [f"configs/models/{name}.json" for name in names]


if __name__ == "__main__":
    main()
