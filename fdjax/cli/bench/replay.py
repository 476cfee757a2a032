"""Sends requests when they are due, whether or not earlier ones have ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.outcome import Outcome

type Clock = Callable[[], float]
type Send = Callable[[Outcome, Clock], Awaitable[None]]


async def replay(
    arrivals: Sequence[Arrival],
    send: Send,
    *,
    max_concurrency: int | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Sends every request and waits for the last answer.

    Args:
        arrivals: what to send and when, in the order of their times.
        send: sends the request of an outcome and fills in what became of it, by the
            clock it is given: seconds since the start.
        max_concurrency: most requests under way; later ones wait in the client.
        on_end: called after each.

    Returns:
        One outcome a request, in their order.
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

    async with asyncio.TaskGroup() as group:
        for outcome in outcomes:
            await asyncio.sleep(max(0.0, outcome.due_s - clock()))
            group.create_task(serve(outcome))
    return outcomes
