"""What waits in an inbox is joined, and nothing of it is lost."""

import asyncio
import itertools

import pytest

from fdjax.engine.request import Found, Increment, Logprob
from fdjax.errors import EngineDeadError
from fdjax.generate.stopping import FinishReason
from fdjax.serve.inbox import MOST_JOINED, Inbox, Item

pytestmark = pytest.mark.anyio


def increment(*tokens: int, end: FinishReason | None = None) -> Increment:
    return Increment(3, list(tokens), None, end)


async def all_of(inbox: Inbox, count: int) -> list[Item]:
    async with asyncio.timeout(5):
        return [await inbox.get() for _ in range(count)]


async def test_tokens_that_wait_are_one_increment():
    inbox, first = Inbox(), increment(1)
    for one in (first, increment(2, 3), increment(end=FinishReason.LENGTH)):
        inbox.put(one)
    assert await all_of(inbox, 1) == [increment(1, 2, 3, end=FinishReason.LENGTH)]
    assert first == increment(1), "whose it was may still have it"


async def test_log_probabilities_stay_with_their_tokens():
    inbox, prompt = Inbox(), [None, _logprob(7)]
    inbox.put(Increment(0, [1], [_logprob(1)], None, prompt))
    inbox.put(Increment(0, [2, 3], [_logprob(2), _logprob(3)], None))
    joined = Increment(0, [1, 2, 3], [_logprob(i) for i in (1, 2, 3)], None, prompt)
    assert await all_of(inbox, 1) == [joined]


async def test_no_more_are_joined_than_may_be():
    inbox, tokens = Inbox(), range(2 * MOST_JOINED + 3)
    for token in tokens:
        inbox.put(increment(token))
    items = await all_of(inbox, 3)
    made = [one.token_ids for one in items if isinstance(one, Increment)]
    assert [len(each) for each in made] == [MOST_JOINED, MOST_JOINED, 3]
    assert [*itertools.chain(*made)] == [*tokens]


async def test_who_is_quick_gets_each_by_itself():
    inbox = Inbox()
    reading = asyncio.create_task(all_of(inbox, 2))
    for token in (1, 2):
        await asyncio.sleep(0)
        inbox.put(increment(token))
        await asyncio.sleep(0)
    assert await reading == [increment(1), increment(2)]


async def test_what_replaces_and_what_ends_is_not_joined():
    inbox, end = Inbox(), increment(1, end=FinishReason.STOP)
    items = (Found(3, [], None, None), increment(5), EngineDeadError("dead"))
    for item in (*items, end, increment(2)):
        inbox.put(item)
    assert await all_of(inbox, 5) == [*items, end, increment(2)]


async def test_a_reader_that_gives_up_loses_nothing():
    inbox = Inbox()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await inbox.get()
    inbox.put(increment(1))
    assert await all_of(inbox, 1) == [increment(1)]


def _logprob(token: int) -> Logprob:
    return Logprob(-float(token), {})
