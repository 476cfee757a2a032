"""Who asks for metrics, and how often they are written."""

import asyncio

import pytest

from fdjax.serve.http.scrapes import Scrapes
from tests.support.http_server import served

pytestmark = pytest.mark.anyio


async def test_a_crowd_is_told_by_one_text(monkeypatch: pytest.MonkeyPatch):
    """It takes milliseconds of the event loop, and no key is wanted for it."""
    with served() as server:
        metrics = server.app.state.server.metrics
        write, count = type(metrics).render, 0

        def counted(metrics: object) -> bytes:
            nonlocal count
            count += 1
            return write(metrics)

        monkeypatch.setattr(type(metrics), "render", counted)
        answers = await asyncio.gather(*(server.get("/metrics") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert all(b"num_requests_running" in answer.content for answer in answers)
    assert count < 10


async def test_nobody_is_told_what_was_before():
    now = 0
    scrapes = Scrapes(lambda: b"%d" % now)
    for now in range(1, 4):
        assert await scrapes.text() == b"%d" % now
    async with scrapes._writing:
        asked = asyncio.create_task(scrapes.text())
        await asyncio.sleep(0)  # it waits, as for the last one to have been a while ago
        now = 5
    assert await asked == b"5"


async def test_who_leaves_takes_nothing_from_others():
    scrapes = Scrapes(lambda: b"text")
    left, other = (asyncio.create_task(scrapes.text()) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    assert await other == b"text"


async def test_a_fault_is_told_and_does_not_stay():
    faults = [ValueError("once")]

    def write() -> bytes:
        if faults:
            raise faults.pop()
        return b"text"

    scrapes = Scrapes(write)
    with pytest.raises(ValueError, match="once"):
        await scrapes.text()
    assert await scrapes.text() == b"text"
