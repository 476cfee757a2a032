"""Random requests through one engine: how many there were, and whose tokens differ."""

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from fdjax.engine.engine import Engine
from fdjax.engine.job import Job
from fdjax.engine.origin import Origin
from fdjax.generate.params import SamplingParams
from tests.support.engines import GREEDY, run

TOKENS = [int(token) for token in random.Random(0).choices(range(3, 120), k=26)]

type Kind = tuple[int, int, int]


@dataclass
class Soak:
    """What came of it.

    Attributes:
        outputs: tokens of each request that was not aborted, by what it asked for:
            where its prompt begins in `TOKENS`, how long it is, and `max_tokens`.
        num_aborted: requests that were aborted on the way.
    """

    outputs: dict[Job, tuple[Kind, list[int]]] = field(
        default_factory=dict[Job, tuple[Kind, list[int]]]
    )
    num_aborted: int = 0

    def differing(self, engine: Engine) -> Iterator[Kind]:
        """Those whose tokens are not what the request gives by itself."""
        alone: dict[Kind, list[int]] = {}
        for kind, tokens in self.outputs.values():
            if kind not in alone:
                alone[kind] = run(engine, [prompt_of(kind)], _params(kind))[0]
            if tokens != alone[kind]:
                yield kind


def prompt_of(kind: Kind) -> list[int]:
    """Many are the beginning of another, so that prefixes are found."""
    start, length, _ = kind
    return TOKENS[start : start + length]


def soak(engine: Engine, *, num_requests: int, seed: int) -> Soak:
    """Adds requests of random lengths, tenants and priorities at random times.

    Some are samples of one request, and some are aborted.

    Returns when the engine has no work left.
    """
    draw, left = random.Random(seed), num_requests
    kinds: dict[Job, Kind] = {}
    tokens: defaultdict[Job, list[int]] = defaultdict(list)
    live: list[Job] = []
    done, origin = Soak(), Origin()
    while left or engine.has_work:
        while left and len(live) < 100 and draw.random() < 0.5:
            left -= 1
            kind = draw.randrange(3), draw.randrange(1, 20), draw.randrange(1, 12)
            request = engine.request(0, prompt_of(kind), _params(kind))
            if draw.random() < 0.5:
                tenant, priority = draw.choice("ab"), draw.randrange(2)
                origin = Origin(tenant=tenant, priority=priority)
            job = engine.add(request, origin)
            kinds[job] = kind
            live.append(job)
        if live and draw.random() < 0.1:
            job = live[draw.randrange(len(live))]
            if not job.ended:
                engine.abort(job)
                del kinds[job]
                done.num_aborted += 1
        live = [job for job in live if not job.ended]
        for job, increment in engine.step():
            tokens[job] += increment.token_ids
    done.outputs = {job: (kind, tokens[job]) for job, kind in kinds.items()}
    return done


def is_idle(engine: Engine) -> bool:
    """Every page and row is free, and nobody waits for a page to be computed."""
    pool = engine.scheduler.pool
    free = len(engine.scheduler._rows)
    return (
        pool.num_free == pool.num_pages
        and free == engine.buckets.rows[-1]
        and not engine.scheduler.waiting._rows_of_request
        and not engine.scheduler._coming
    )


def _params(kind: Kind) -> SamplingParams:
    return dataclasses.replace(GREEDY, max_tokens=kind[2])
