"""Sends requests when they are due, whether or not earlier ones have ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.outcome import Outcome

type Clock = Callable[[], float]
type Send = Callable[[Outcome, Clock], Awaitable[None]]

PROBE_S = 0.01


@dataclass(frozen=True)
class Replay:
    """What a replay has seen.

    Attributes:
        outcomes: one a request, in their order.
        lag_s: seconds by which a probe of the client woke up too late, every 10 ms:
            times of events are too late by as much.
    """

    outcomes: list[Outcome]
    lag_s: list[float]


async def replay(
    arrivals: Sequence[Arrival],
    send: Send,
    *,
    max_concurrency: int | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> Replay:
    """Sends every request and waits for the last answer.

    Args:
        arrivals: what to send and when, in the order of their times.
        send: sends the request of an outcome and fills in what became of it, by the
            clock it is given: seconds since the start.
        max_concurrency: most requests under way; later ones wait in the client.
        on_end: called after each.
    """
    start = time.perf_counter()
    outcomes = [
        Outcome(index, one.at_s, one.input_tokens, one.output_tokens)
        for index, one in enumerate(arrivals)
    ]
    free = asyncio.Semaphore(max_concurrency or len(arrivals))

    def clock() -> float:
        return time.perf_counter() - start

    async def serve(outcome: Outcome) -> None:
        async with free:
            await send(outcome, clock)
        on_end()

    lag_s: list[float] = []
    probe = asyncio.create_task(_probe(lag_s))
    try:
        async with asyncio.TaskGroup() as group:
            for outcome in outcomes:
                await asyncio.sleep(max(0.0, outcome.due_s - clock()))
                group.create_task(serve(outcome))
    finally:
        probe.cancel()
    return Replay(outcomes, lag_s)


async def _probe(lag_s: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(PROBE_S)
        lag_s.append(max(0.0, time.perf_counter() - start - PROBE_S))
