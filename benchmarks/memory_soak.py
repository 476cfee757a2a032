"""Random requests at 1.3 times the load that fits: whose tokens change.

A model over a KV array whose end steps borrow, so small that pages are moved all the
time; how often sequences are put back is told. Its prompts are what it says itself.
Each kind of request runs again, undisturbed: in an array with room for all that run,
which nobody borrows. In 16 bits the same tokens cannot be asked for: calls have other
sizes there, and so other orders of sums, which decide where two tokens are all but
equally likely. So the same requests come once more, at the same times, where nothing is
lent, moved or put back, and are judged alike. What somebody has overwritten makes other
tokens; what rounding decides differs there, too.

Weights must be trained: those of made-up ones are all but equally likely everywhere.
"""

import argparse
import pathlib
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from benchmarks import results
from benchmarks.memory import Row, keep
from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.engine.request import Logprob
from fdjax.engine.runs import Runs
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from fdjax.memory.plan import MemoryPlan
from fdjax.models import SHIPPED
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import load_decoder, make_engine
from fdjax.serve.setup import Settings

# Tokens of all requests at a time, by the tokens that fit.
LOAD = 1.3
LENGTHS, OUTPUTS, STARTS = (8, 40, 96, 160, 250), (4, 40, 120, 300), 3
# Of requests that are there, one in so many steps is aborted.
STEPS_OF_ABORT = 20
# Log-probabilities that 16 bits may exchange.
TIE = 0.05
MOST_LIKELY = 20
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, ignore_eos=True)


@dataclass(frozen=True)
class Kind:
    """What a request asks for: which prompt, tokens of it, and of its output."""

    start: int
    length: int
    output: int

    def params(self, **options: Any) -> SamplingParams:
        """All tokens come, the most likely ones."""
        return replace(GREEDY, max_tokens=self.output, **options)


@dataclass(frozen=True)
class Soak:
    """What came: tokens of each request that was not aborted, and how many were."""

    outputs: Sequence[tuple[Kind, list[int]]]
    num_aborted: int


@dataclass(frozen=True)
class Undisturbed:
    """Tokens of a kind of request, and what was likely in the place of each."""

    tokens: list[int]
    likely: list[Logprob]

    def verdict(self, tokens: Sequence[int]) -> Literal["same", "tie", "other"]:
        """What tokens are beside these, by the first that differs."""
        if len(tokens) != len(self.tokens):
            return "other"
        pairs = zip(tokens, self.tokens, self.likely, strict=True)
        for one, token, likely in pairs:
            if one != token:
                gap = likely.logprob - likely.top.get(one, float("-inf"))
                return "tie" if gap <= TIE else "other"
        return "same"


def kinds() -> list[Kind]:
    """All there are."""
    return [
        Kind(start, length, output)
        for start in range(STARTS)
        for length in LENGTHS
        for output in OUTPUTS
    ]


def mean_tokens() -> float:
    """Of a request, prompt and output."""
    return sum(LENGTHS) / len(LENGTHS) + sum(OUTPUTS) / len(OUTPUTS)


def told(engine: Engine) -> dict[Kind, list[int]]:
    """The prompt of each kind; those of one start begin alike, so that one is found."""
    runs, begin = Runs(engine), [0]
    sequences: dict[EngineSequence, list[int]] = {}
    for start in range(STARTS):
        params = replace(DRAWN, seed=start, max_tokens=max(LENGTHS) - len(begin))
        (sequence,) = runs.add([engine.request(0, begin, params)])
        sequences[sequence] = [*begin]
    for sequence, new in runs.follow([*sequences]):
        sequences[sequence] += new.token_ids
    stories = [*sequences.values()]
    return {kind: stories[kind.start][: kind.length] for kind in kinds()}


def soak(
    engine: Engine,
    prompts: Mapping[Kind, Sequence[int]],
    *,
    num_requests: int,
    num_live: int,
    seed: int,
) -> Soak:
    """Adds requests at random times, aborts some, and runs all to their ends.

    Args:
        engine: without work.
        prompts: of each kind of request.
        num_requests: how many.
        num_live: that wait or run at a time, at most.
        seed: of all that is random.
    """
    draw, left, num_aborted = random.Random(seed), num_requests, 0
    live: dict[EngineSequence, Kind] = {}
    asked: dict[EngineSequence, Kind] = {}
    tokens: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    while left or engine.has_work:
        while left and len(live) < num_live and draw.random() < 0.9:
            left -= 1
            kind = draw.choice([*prompts])
            request = engine.request(0, prompts[kind], kind.params())
            sequence = engine.add(request)
            live[sequence] = asked[sequence] = kind
        if live and draw.randrange(STEPS_OF_ABORT) == 0:
            sequence = draw.choice([*live])
            if not sequence.ended:
                engine.abort(sequence)
                num_aborted += 1
                del asked[sequence]
        for sequence, new in engine.step():
            tokens[sequence] += new.token_ids
        live = {one: kind for one, kind in live.items() if not one.ended}
    return Soak([(kind, tokens[one]) for one, kind in asked.items()], num_aborted)


def undisturbed(
    engine: Engine, prompts: Mapping[Kind, Sequence[int]]
) -> dict[Kind, Undisturbed]:
    """Runs each kind once.

    Args:
        engine: with room for all of its rows.
        prompts: of the kinds.
    """
    vocab_size = engine.config.embedding.vocab_size
    runs, sequences = Runs(engine), dict[EngineSequence, Kind]()
    for kind, prompt in prompts.items():
        params = kind.params(logprobs=min(MOST_LIKELY, vocab_size))
        request = engine.request(0, prompt, params)
        sequences[runs.add([request])[0]] = kind
    found = {kind: Undisturbed([], []) for kind in sequences.values()}
    for sequence, new in runs.follow([*sequences]):
        of_kind = found[sequences[sequence]]
        of_kind.tokens.extend(new.token_ids)
        of_kind.likely.extend(new.logprobs or [])
    return found


def verdicts(done: Soak, alone: Mapping[Kind, Undisturbed]) -> dict[str, int]:
    """How many requests are the same, ties, and others."""
    found = {"same": 0, "tie": 0, "other": 0}
    for kind, tokens in done.outputs:
        found[alone[kind].verdict(tokens)] += 1
    return found


def measure(
    settings: Settings,
    model: Decoder,
    *,
    num_requests: int,
    room_tokens: int,
    caching: bool,
    seed: int,
) -> Row:
    """One object of the results.

    Args:
        settings: of as many rows as requests are there at a time.
        model: loaded.
        num_requests: how many.
        room_tokens: that the array has room for beside the smallest step.
        caching: of prefixes.
        seed: of all that is random.
    """
    plan = settings.memory_plan()
    wanted = plan.least_step_pages + plan.layout.pages_for(room_tokens)
    small = replace(plan, layout=plan.layout.with_pages(wanted))
    separate = replace(settings.widest_layout, lent=False)
    apart = _engine(settings, model, replace(plan, layout=separate), caching=False)
    prompts = told(apart)
    alone = undisturbed(apart, prompts)
    load = partial(
        soak,
        prompts=prompts,
        num_requests=num_requests,
        num_live=settings.max_num_seqs,
        seed=seed,
    )
    control = verdicts(load(apart), alone)
    del apart
    engine = _engine(settings, model, small, caching=caching)
    started = time.perf_counter()
    done = load(engine)
    seconds, now = time.perf_counter() - started, engine.statistics()
    pool, found = engine.scheduler.pool, verdicts(done, alone)
    return {
        "requests": num_requests,
        "at_a_time": settings.max_num_seqs,
        "load": LOAD,
        "room_tokens": room_tokens,
        "prefix_caching": caching,
        "lent": small.layout.lent,
        "ended": len(done.outputs),
        "aborted": done.num_aborted,
        "moved_pages": now.num_moved_pages,
        "put_back": now.num_preemptions,
        "put_back_for_room": now.num_put_back_for_room,
        "differing": found["other"],
        "ties": found["tie"],
        "differing_undisturbed": control["other"],
        "ties_undisturbed": control["tie"],
        "tie_logprob": TIE,
        "pages": pool.num_pages,
        "pages_back": pool.num_free,
        "seconds": round(seconds, 1),
        **results.provenance(),
    }


def _engine(
    settings: Settings, model: Decoder, plan: MemoryPlan, *, caching: bool
) -> Engine:
    engine = make_engine(settings, model, plan, prefix_caching=caching)
    engine.warm_up([GREEDY])
    return engine


def main(given: Sequence[str] | None = None) -> None:
    """Writes `memory_soak.json`.

    Args:
        given: of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SHIPPED)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=8192, help="that fit")
    parser.add_argument("--batched-tokens", type=int, default=512, help="of a step")
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args(given)
    device.claim_memory(0.93)
    settings = Settings.of(
        asked.model,
        max_model_len=max(LENGTHS) + max(OUTPUTS),
        max_num_seqs=round(LOAD * asked.tokens / mean_tokens()),
        max_num_batched_tokens=asked.batched_tokens,
    )
    model = load_decoder(
        settings,
    )
    row = measure(
        settings,
        model,
        num_requests=asked.requests,
        room_tokens=asked.tokens,
        caching=bool(asked.prefix_caching),
        seed=asked.seed,
    )
    cached = "cached" if asked.prefix_caching else "uncached"
    name = pathlib.Path(asked.model).stem
    row = {"case": f"{name}-{cached}", **row}
    print(row, flush=True)
    default = results.RESULTS / results.device_slug() / "memory_soak.json"
    keep(asked.out or default, [row])


if __name__ == "__main__":
    main()
