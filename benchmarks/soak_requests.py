"""Requests of the memory's soak, and how what came of them is judged."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdjax.engine.engine import Engine
from fdjax.engine.request import Logprob
from fdjax.engine.runs import Runs
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams

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

    def gap(self, tokens: Sequence[int]) -> float | None:
        """By how much the first token that differs was less likely, in log-probability.

        Where it was not among the most likely it is at least this. None where all are
        the same.

        Raises:
            ValueError: there are more tokens, or fewer.
        """
        if len(tokens) != len(self.tokens):
            raise ValueError(f"{len(tokens)} tokens came, not {len(self.tokens)}")
        for one, token, likely in zip(tokens, self.tokens, self.likely, strict=True):
            if one != token:
                return likely.logprob - likely.top.get(one, min(likely.top.values()))
        return None


@dataclass(frozen=True)
class Verdicts:
    """What came of a soak.

    Attributes:
        num_ties: requests whose first other token is one that 16 bits may exchange.
        num_differing: those whose first other token was less likely.
        num_kinds: of these.
        largest_gap: of all, in log-probability.
    """

    num_ties: int
    num_differing: int
    num_kinds: int
    largest_gap: float

    def row(self, suffix: str = "") -> dict[str, int | float]:
        """For the results, under names that end alike."""
        found = {
            "differing": self.num_differing,
            "differing_kinds": self.num_kinds,
            "ties": self.num_ties,
            "largest_gap": round(self.largest_gap, 4),
        }
        return {f"{name}{suffix}": number for name, number in found.items()}


def kinds() -> list[Kind]:
    """All there are."""
    return [
        Kind(start, length, output)
        for start in range(STARTS)
        for length in LENGTHS
        for output in OUTPUTS
    ]


def mean_tokens() -> float:
    """Of a request on its way: its prompt, and half of its output."""
    return sum(LENGTHS) / len(LENGTHS) + sum(OUTPUTS) / len(OUTPUTS) / 2


def longest() -> int:
    """Tokens of the longest request, prompt and output."""
    return max(LENGTHS) + max(OUTPUTS)


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

    One kind comes as often as there are requests at a time. If each were drawn, some
    would end as others grow, and all together would hold no more than when the last
    were let in: nobody would be put back for what a small step borrows.

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
    kind = draw.choice([*prompts])
    while left or engine.has_work:
        while left and len(live) < num_live and draw.random() < 0.9:
            left -= 1
            if left % num_live == 0:
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


def verdicts(done: Soak, alone: Mapping[Kind, Undisturbed]) -> Verdicts:
    """What came beside each request alone."""
    gaps = [(kind, alone[kind].gap(tokens)) for kind, tokens in done.outputs]
    differing = [(kind, gap) for kind, gap in gaps if gap is not None and gap > TIE]
    return Verdicts(
        num_ties=sum(gap is not None for _, gap in gaps) - len(differing),
        num_differing=len(differing),
        num_kinds=len({kind for kind, _ in differing}),
        largest_gap=max((gap for _, gap in gaps if gap is not None), default=0.0),
    )
