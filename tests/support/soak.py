"""Random requests through one engine: how many there were, and whose tokens differ."""

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdjax.engine.engine import Engine
from fdjax.engine.executor import AnyAwaited
from fdjax.engine.origin import Origin
from fdjax.engine.request import Found, Increment, Request
from fdjax.engine.runs import Runs
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from tests.support.engines import GREEDY
from tests.support.matchers import Places

TOKENS = [int(token) for token in random.Random(0).choices(range(3, 120), k=26)]

# What is asked for: beams of so many (0: none), or draws, all that sampling can do, and
# a form that the host follows.
type Asked = int | Literal["drawn", "penalised", "formed"]

WIDTHS: tuple[Asked, ...] = (0, 0, 2, 3, 4)
STYLES: tuple[Asked, ...] = (0, "drawn", "penalised", "formed")

# Tokens of a request as drawn below, prompt and output, on average.
MEAN_TOKENS = 10 + 6

type Kind = tuple[int, int, int, Asked]


@dataclass
class Soak:
    """What came of it.

    Attributes:
        outputs: tokens of each request that was not aborted, of a search those of its
            hypotheses, by what it asked for: where its prompt begins in `TOKENS`, how
            long it is, `max_tokens`, and what else.
        num_aborted: requests that were aborted on the way.
        num_searches: beam searches among all.
        num_mixed: calls that had prompts, and rows that decode.
    """

    outputs: dict[EngineSequence, tuple[Kind, list[int]]] = field(
        default_factory=dict[EngineSequence, tuple[Kind, list[int]]]
    )
    num_aborted: int = 0
    num_searches: int = 0
    num_mixed: int = 0

    def differing(self, engine: Engine) -> Iterator[Kind]:
        """Those whose tokens are not what the request gives by itself."""
        alone: dict[Kind, list[int]] = {}
        for kind, tokens in self.outputs.values():
            if kind not in alone:
                alone[kind] = _alone(engine, kind)
            if tokens != alone[kind]:
                yield kind


def prompt_of(kind: Kind) -> list[int]:
    """Many are the beginning of another, so that prefixes are found."""
    start, length, *_ = kind
    return TOKENS[start : start + length]


def soak(
    engine: Engine,
    *,
    num_requests: int,
    seed: int,
    asked: Sequence[Asked] = (0,),
    num_live: int = 100,
    max_samples: int = 1,
) -> Soak:
    """Adds requests of random lengths, tenants and priorities at random times.

    Some are samples of one prompt, or of one client, and some are aborted.

    Args:
        engine: of at least four rows, if there are beams.
        num_requests: how many.
        seed: of all that is random.
        asked: what each asks for, one of these.
        num_live: requests that wait or run at a time, at most.
        max_samples: of a prompt that is no search.

    Returns when the engine has no work left.
    """
    draw, left = random.Random(seed), num_requests
    kinds: dict[EngineSequence, Kind] = {}
    tokens: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    live: list[EngineSequence] = []
    done, origin = Soak(), Origin()
    extend = engine.executor.extend

    def counted(
        sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
    ) -> list[AnyAwaited]:
        done.num_mixed += bool(sequences) and bool(chunks)
        return extend(sequences, chunks)

    engine.executor.extend = counted
    while left or engine.has_work:
        while left and len(live) < num_live and draw.random() < 0.5:
            left -= 1
            lengths = draw.randrange(1, 20), draw.randrange(1, 12)
            kind = draw.randrange(3), *lengths, draw.choice(asked)
            request = _request(engine, kind)
            done.num_searches += request.beams is not None
            if draw.random() < 0.5:
                tenant, priority = draw.choice("ab"), draw.randrange(2)
                origin = Origin(tenant=tenant, priority=priority)
            count = 1
            if request.beams is None and max_samples > 1:
                count = draw.randint(1, max_samples)
            sequences = engine.add_samples([request] * count, origin)
            kinds |= dict.fromkeys(sequences, kind)
            live += sequences
        if live and draw.random() < 0.1:
            sequence = live[draw.randrange(len(live))]
            if not sequence.ended:
                engine.abort(sequence)
                del kinds[sequence]
                done.num_aborted += 1
        live = [sequence for sequence in live if not sequence.ended]
        for sequence, increment in engine.step():
            tokens[sequence] += _told(increment)
    engine.executor.extend = extend
    done.outputs = {
        sequence: (kind, tokens[sequence]) for sequence, kind in kinds.items()
    }
    return done


def is_idle(engine: Engine) -> bool:
    """Every page and row is free, and nobody waits for a page to be computed."""
    pool = engine.scheduler.pool
    free = len(engine.scheduler._rows)
    return (
        pool.num_free == pool.num_pages
        and free == engine.buckets.rows[-1]
        and not engine.scheduler.waiting._rows_of_request
        and not engine.scheduler.prefixes.any_coming
    )


def _request(engine: Engine, kind: Kind) -> Request:
    grammar = None
    if kind[3] == "formed":  # half of all tokens, other ones in each place
        size = engine.config.embedding.vocab_size
        grammar = Places([range(n % 2, size, 2) for n in range(kind[2] + 1)], size)
    return engine.request(0, prompt_of(kind), _params(kind), grammar)


def _params(kind: Kind) -> SamplingParams | BeamSearchParams:
    start, _, max_tokens, asked = kind
    greedy = dataclasses.replace(GREEDY, max_tokens=max_tokens)
    drawn = dataclasses.replace(greedy, temperature=1.0, top_k=40, seed=start)
    match asked:
        case 0 | "formed":
            return greedy
        case "drawn":
            return drawn
        case "penalised":
            return dataclasses.replace(
                drawn, frequency_penalty=0.5, repetition_penalty=1.2, logprobs=2
            )
        case width:
            return BeamSearchParams(
                beam_width=width, max_tokens=max_tokens, ignore_eos=True
            )


def _alone(engine: Engine, kind: Kind) -> list[int]:
    runs = Runs(engine)
    told = [_told(one) for _, one in runs.follow(runs.add([_request(engine, kind)]))]
    return [token for tokens in told for token in tokens]


def _told(increment: Increment) -> list[int]:
    if not isinstance(increment, Found):
        return increment.token_ids
    return [token for one in increment.hypotheses for token in one.token_ids]
