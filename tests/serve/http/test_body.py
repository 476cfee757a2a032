"""Bodies that are on their way: bounded in bytes, together."""

import asyncio
from dataclasses import dataclass, field

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fdjax.serve.http.body import BodyLimit
from fdjax.serve.http.tenants import Tenant, attach

MOST = 100
UNDERWAY = 250


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Says how long the body was."""
    message = await receive()
    await Response(str(len(message["body"])))(scope, receive, send)


@dataclass
class Client:
    """One request: parts are sent to it, and an answer comes."""

    limit: BodyLimit
    tenant: str = ""
    parts: asyncio.Queue[Message] = field(default_factory=asyncio.Queue[Message])
    status: int | None = None
    body: bytes = b""

    async def run(self) -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        attach(scope, Tenant(self.tenant, among_others=bool(self.tenant)))
        await self.limit(scope, self.parts.get, self._take)

    async def say(self, num_bytes: int, *, more: bool = True) -> None:
        """Sends a part, and lets all take in what there is."""
        part = {"type": "http.request", "body": b"a" * num_bytes, "more_body": more}
        self.parts.put_nowait(part)
        await settled()

    async def leave(self) -> None:
        self.parts.put_nowait({"type": "http.disconnect"})
        await settled()

    async def _take(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def limit() -> BodyLimit:
    return BodyLimit(
        application, max_bytes=MOST, max_bytes_underway=UNDERWAY, seconds=30.0
    )


@pytest.mark.anyio
async def test_who_has_sent_most_gives_way(limit: BodyLimit):
    async with asyncio.TaskGroup() as tasks:
        large, larger, small, late = clients = [Client(limit) for _ in range(4)]
        for client in clients:
            tasks.create_task(client.run())
        await large.say(90)
        await larger.say(95)
        await small.say(40)
        assert [client.status for client in clients] == [None] * 4
        await late.say(30)
        assert (larger.status, large.status, small.status) == (503, None, None)
        assert b"more than 250 bytes together" in larger.body
        for client, whole in ((large, 91), (small, 41), (late, 31)):
            await client.say(1, more=False)
            assert (client.status, client.body) == (200, str(whole).encode())


@pytest.mark.anyio
async def test_the_newcomer_gives_way_if_it_has_most(limit: BodyLimit):
    async with asyncio.TaskGroup() as tasks:
        first, second, third, last = clients = [Client(limit) for _ in range(4)]
        for client in clients:
            tasks.create_task(client.run())
        for client in (first, second, third):
            await client.say(60)
        last.parts.put_nowait({"type": "http.request", "body": b"", "more_body": True})
        await last.say(71)
        await last.say(1, more=False)
        assert last.status == 503, "though its end had come before it was told"
        for client in (first, second, third):
            await client.say(0, more=False)
            assert client.status == 200


@pytest.mark.anyio
async def test_room_comes_back(limit: BodyLimit):
    """Of bodies whose client has gone, that were too long, and that are complete."""
    for num_bytes, ends in ((90, "goes"), (90, "grows"), (90, "is whole")):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                client = Client(limit)
                tasks.create_task(client.run())
                await client.say(num_bytes)
                if ends == "goes":
                    await client.leave()
                else:
                    await client.say(num_bytes if ends == "grows" else 0, more=False)
                expected = {"goes": None, "grows": 413, "is whole": 200}
                assert client.status == expected[ends]
    assert limit._num_bytes == 0
    assert not limit._underway


@pytest.mark.anyio
async def test_a_body_in_one_piece_needs_no_room(limit: BodyLimit):
    async with asyncio.TaskGroup() as tasks:
        slow = [Client(limit) for _ in range(3)]
        for client in slow:
            tasks.create_task(client.run())
            await client.say(80)
        whole = Client(limit)
        tasks.create_task(whole.run())
        await whole.say(MOST, more=False)
        assert whole.status == 200
        for client in slow:
            await client.say(1, more=False)
            assert client.status == 200


@pytest.mark.anyio
async def test_what_is_served_is_held_and_bounded():
    """However long it takes; short bodies are let in all the same."""
    free, long = asyncio.Event(), 2**16 + 1

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await free.wait()
        await application(scope, receive, send)

    limit = BodyLimit(
        serve, max_bytes=2 * long, max_bytes_underway=2 * long, seconds=30.0
    )
    async with asyncio.TaskGroup() as tasks:
        clients = [Client(limit) for _ in range(4)]
        first, second, third, short = clients
        for client in clients:
            tasks.create_task(client.run())
        for client in (first, second, third):
            await client.say(long, more=False)
        assert [one.status for one in clients] == [None, None, 503, None]
        assert b"too_many_bodies" in third.body
        await short.say(10, more=False)
        free.set()
    assert [one.status for one in clients] == [200, 200, 503, 200]
    again = Client(limit)
    again.parts.put_nowait(
        {"type": "http.request", "body": b"a" * long, "more_body": False}
    )
    await again.run()
    assert again.status == 200, "their room is free"


@pytest.mark.anyio
async def test_a_key_leaves_room_for_the_bodies_of_others():
    free, long = asyncio.Event(), 2**16 + 1

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await free.wait()
        await application(scope, receive, send)

    limit = BodyLimit(serve, max_bytes=long, max_bytes_underway=9 * long, seconds=30.0)
    async with asyncio.TaskGroup() as tasks:
        clients = [Client(limit, tenant=name) for name in "a" * 9 + "b"]
        for client in clients:
            tasks.create_task(client.run())
            await client.say(long, more=False)
        free.set()
    assert [one.status for one in clients] == [200] * 7 + [503] * 2 + [200]
