"""What an engine's thread has made comes in order, and lets others have their turn."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from fdjax.engine.request import Increment
from fdjax.serve import posting
from fdjax.serve.posting import Delivery, Posting, Postings
from fdjax.serve.tickets import Ticket
from tests.support.async_llm import TOKENS, Make, collect, tokens_of
from tests.support.fake_engine import FakeEngine, FakeSequence

pytestmark = pytest.mark.anyio


def nobody(tickets: Sequence[Ticket]) -> None:
    raise AssertionError(f"{len(tickets)} tickets have no loop")


def token(number: int) -> Increment:
    return Increment(0, [number], None, None)


async def test_a_crowd_comes_in_slices_and_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(posting, "_SLICE", 3)
    loop, order = asyncio.get_running_loop(), list[str]()
    tickets, postings = [Ticket(loop) for _ in range(9)], Postings(nobody)
    tokens: dict[int, list[int]] = {number: [] for number in range(9)}

    async def read(number: int) -> None:
        while len(tokens[number]) < 2:
            item = await tickets[number].inbox.get()
            assert isinstance(item, Increment)
            tokens[number] += item.token_ids
            order.append("reader")

    async def other() -> None:
        while reading:
            order.append("other")
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read(number)) for number in range(9)]
    reading, others = True, asyncio.create_task(other())
    await asyncio.sleep(0)
    for step in (1, 2):  # the second is there before all of the first was put
        postings.post([(ticket, token(step)) for ticket in tickets])
    await asyncio.gather(*readers)
    reading = False
    await others
    assert all(one == [1, 2] for one in tokens.values())
    turns = "".join(one[0] for one in order).split("o")
    assert max(map(len, turns)) == 3, "no more than a slice between the other's turns"


async def test_a_loop_that_is_closed_is_told():
    closed, told = asyncio.new_event_loop(), list[Ticket]()
    closed.close()
    gone, here = Ticket(closed), Ticket(asyncio.get_running_loop())
    Postings(told.extend).post([(gone, token(1)), (here, token(2))])
    assert told == [gone]
    assert await here.inbox.get() == token(2)


async def test_first_tokens_come_at_once_and_others_with_the_next_launch(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    during: list[bool] = []
    post, is_stepping = Posting.post, False

    def watched(
        self: Posting, loop: asyncio.AbstractEventLoop, items: Sequence[Delivery]
    ) -> bool:
        during.extend([is_stepping] * len(items))
        return post(self, loop, items)

    class Watched(FakeEngine):
        def step(
            self, on_launch: Callable[[], None] = lambda: None
        ) -> list[tuple[FakeSequence, Increment]]:
            nonlocal is_stepping
            is_stepping = True
            try:
                return super().step(on_launch)
            finally:
                is_stepping = False

    monkeypatch.setattr(Posting, "post", watched)
    assert tokens_of(await collect(make(Watched(TOKENS)))) == TOKENS
    # The last token's step is the last one: nothing is launched after it.
    assert during == [False, *[True] * (len(TOKENS) - 2), False]
