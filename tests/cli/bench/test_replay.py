"""Requests leave when they are due, whatever became of those before."""

import asyncio
import time

import pytest

from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.replay import Clock, replay

ARRIVALS = [Arrival(0.0, 1, 2), Arrival(0.05, 3, 4), Arrival(0.1, 5, 6)]


class Gate:
    """Requests stay until so many are under way together; later ones a moment."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.running = 0
        self.most = 0
        self.open = asyncio.Event()

    async def send(self, outcome: Outcome, clock: Clock) -> None:
        outcome.sent_s = clock()
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.wanted:
            self.open.set()
        async with asyncio.timeout(60):
            await self.open.wait()
        await asyncio.sleep(0.2)
        self.running -= 1
        outcome.end_s = clock()


def test_requests_do_not_wait_for_each_other():
    gate, ended = Gate(3), list[None]()
    run = replay(ARRIVALS, gate.send, on_end=lambda: ended.append(None))
    outcomes = asyncio.run(run).outcomes
    assert gate.most == len(ended) == 3
    assert [one.index for one in outcomes] == [0, 1, 2]
    assert [one.due_s for one in outcomes] == [0.0, 0.05, 0.1]
    assert [one.input_tokens for one in outcomes] == [1, 3, 5]
    assert [one.asked_tokens for one in outcomes] == [2, 4, 6]
    assert all(one.late_s >= 0 for one in outcomes)
    assert all(one.e2e_s >= 0.15 for one in outcomes)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_makes_them_wait_and_says_so(limit: int):
    gate = Gate(limit)
    run = replay(ARRIVALS, gate.send, max_concurrency=limit)
    outcomes = asyncio.run(run).outcomes
    assert gate.most == limit
    assert outcomes[-1].late_s >= (0.25 if limit == 1 else 0.05)


def test_a_busy_client_notices_its_lag():
    async def blocking(outcome: Outcome, clock: Clock) -> None:
        outcome.sent_s = clock()
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # as a client does that has too much to read
        await asyncio.sleep(0.05)  # whoever measures the lag has its turn
        outcome.end_s = clock()

    replayed = asyncio.run(replay(ARRIVALS[:1], blocking))
    assert max(replayed.lag_s) >= 0.25
    assert min(replayed.lag_s) < max(replayed.lag_s)
