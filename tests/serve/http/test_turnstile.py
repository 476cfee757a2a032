"""Few requests begin in a turn of the event loop, however they come."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from fdjax.serve.http import reference
from fdjax.serve.http.turnstile import PER_TURN, Turnstile
from tests.support.http_server import listening, served
from tests.support.raw_http import connection

pytestmark = pytest.mark.anyio


class Clock:
    """Counts the turns of an event loop."""

    def __init__(self) -> None:
        self.turn = 0
        self._stopped = False

    def tick(self) -> None:
        self.turn += 1
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self.tick)

    @contextlib.contextmanager
    def running(self) -> Generator["Clock"]:
        self.tick()
        try:
            yield self
        finally:
            self._stopped = True


def be_busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def entered(addresses: str, *, busy_s: float = 0.0) -> tuple[str, list[int]]:
    """Who enters in which order, and in which turns of the loop; all come at once."""
    turnstile, order, turns = Turnstile(), [""], list[int]()

    async def one(address: str) -> None:
        turn = await turnstile.enter(address)
        order.append(address)
        turns.append(clock.turn)
        if busy_s:
            be_busy(busy_s)
            turnstile.leave(turn)

    with Clock().running() as clock:
        await asyncio.gather(*map(one, addresses))
    return "".join(order), turns


async def test_few_enter_in_a_turn():
    _, turns = await entered("a" * 5 * PER_TURN)
    assert {*Counter(turns).values()} == {PER_TURN}
    later = turns[PER_TURN:]
    assert later[-1] - later[0] == 3, "and no turn is lost"


async def test_addresses_take_turns():
    order, _ = await entered("a" * PER_TURN + "aaaabbc")
    assert order[PER_TURN:] == "abcabaa", "those before had entered when others came"


async def test_after_what_is_answered_at_once_others_have_as_much_time():
    start, count = time.monotonic(), 3 * PER_TURN
    await entered("a" * count, busy_s=0.005)
    least = (count + count - PER_TURN) * 0.005
    assert time.monotonic() - start >= least, "all of them, and the rests between"


async def test_what_has_waited_for_something_is_not_rested_for():
    turnstile = Turnstile()
    turn = await turnstile.enter("a")
    await asyncio.sleep(0.01)
    be_busy(0.1)
    turnstile.leave(turn)
    with Clock().running() as clock:
        for _ in range(3 * PER_TURN):
            await turnstile.enter("a")
    assert clock.turn < 10, "a rest would be thousands"


async def test_who_leaves_meanwhile_takes_nobodys_turn():
    turnstile = Turnstile()
    for _ in range(PER_TURN):
        await turnstile.enter("a")
    gone = asyncio.create_task(turnstile.enter("a"))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(60):
        await turnstile.enter("a")


class Watch:
    """Around an application; in which turns of the loop requests begin."""

    def __init__(self, app: ASGIApp, begun: list[int]) -> None:
        self._app, self._begun = app, begun
        self._clock = Clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._begun:
            self._clock.tick()
        self._begun.append(self._clock.turn)
        await self._app(scope, receive, send)


@pytest.mark.parametrize("path", ["/health", "/docs", "/v1/models"])
async def test_pipelined_requests_of_many_connections_begin_in_turns(path: str):
    """All of them are answered."""
    begun = list[int]()
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n"
    last = f"{head}Connection: close\r\n\r\n"
    with served() as server:
        server.app.add_middleware(Watch, begun=begun)
        with listening(server.app) as port:

            async def ask() -> bytes:
                async with connection(port) as (reader, writer):
                    writer.write(f"{head}\r\n".encode() * 9 + last.encode())
                    return await reader.read()

            async with asyncio.timeout(60):
                answers = await asyncio.gather(*(ask() for _ in range(10)))
    for answer in answers:
        assert answer.count(b"HTTP/1.1 200") == 10
    assert len(begun) == 100
    assert max(Counter(begun).values()) <= PER_TURN


async def test_pages_are_written_once(monkeypatch: pytest.MonkeyPatch):
    rendered, count = reference.rendered, 0

    def counted(document: Mapping[str, Any]) -> str:
        nonlocal count
        count += 1
        return rendered(document)

    monkeypatch.setattr(reference, "rendered", counted)
    with served() as server:
        bodies = [(await server.get("/docs")).content for _ in range(3)]
        documents = [(await server.get("/openapi.json")).content for _ in range(3)]
    assert count == 1
    assert len({*bodies}) == len({*documents}) == 1
