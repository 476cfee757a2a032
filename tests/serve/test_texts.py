"""What cannot fit is not read, and short texts do not wait for long ones."""

import asyncio
import threading

import pytest

from fdjax import RequestError
from fdjax.errors import EngineDeadError
from fdjax.models import SHIPPED, resolve
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.texts import TextLimit, Texts
from fdjax.serve.tokenizer import FastTokenizer
from tests.support.async_llm import until
from tests.support.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

TOKENIZER = FastTokenizer(resolve(SHIPPED) / "tokenizer.json")
LIMIT = TextLimit(max_model_len=8, bytes_per_token=3)


class Stuck(FastTokenizer):
    """Long texts take it until it is freed."""

    def __init__(self) -> None:
        super().__init__(resolve(SHIPPED) / "tokenizer.json")
        self.freed = threading.Event()
        self.inside = threading.Semaphore(0)

    def encode(self, text: str) -> list[int]:
        if len(text) > 1000:
            self.inside.release()
            assert self.freed.wait(30)
        return super().encode(text[:9])


def test_a_limit_is_the_longest_token_or_what_was_said():
    longest = TOKENIZER.longest_token_bytes
    of = TextLimit.of(TOKENIZER, max_model_len=8, max_bytes_per_token=1000)
    assert of.num_bytes == 8 * longest
    of = TextLimit.of(TOKENIZER, max_model_len=8, max_bytes_per_token=2)
    assert of.num_bytes == 16


@pytest.mark.parametrize(
    "texts", [["a" * 25], ["a" * 24, "a"], ["\u706b" * 8 + "a"], ["\u706b" * 9]]
)
def test_bytes_are_counted_over_all_texts(texts: list[str]):
    LIMIT.check(["a" * 24], "it")
    LIMIT.check(["\u706b" * 8, ""], "it")
    with pytest.raises(RequestError, match=r"it has at least 2. bytes.* 24 in all"):
        LIMIT.check(texts, "it")


async def test_what_is_too_long_is_not_tokenised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TOKENIZER, "encode", None)
    with pytest.raises(RequestError, match="prompt 2 has at least 25 bytes"):
        await Texts(TOKENIZER, LIMIT).encode("a" * 25, "prompt 2")


async def test_the_same_ids_and_texts_as_the_tokenizer():
    texts = Texts(TOKENIZER)
    text = "The fox " * 10_000
    ids = await texts.encode(text, "it")
    assert ids == TOKENIZER.encode(text)
    assert await texts.encode(text, "it", plain=True) == ids[1:]
    assert await texts.decode(ids) == text


async def test_short_texts_do_not_wait_for_long_ones():
    tokenizer = Stuck()
    texts, before = Texts(tokenizer), threading.active_count()
    long = [asyncio.create_task(texts.encode("a" * 10**6, "it")) for _ in range(9)]
    try:
        await asyncio.to_thread(tokenizer.inside.acquire)
        async with asyncio.timeout(30):
            assert await texts.encode("Once", "it") == TOKENIZER.encode("Once")
        assert not any(task.done() for task in long)
        # Two for each lane, and the one that waited for the tokenizer.
        assert threading.active_count() - before <= 5
    finally:
        tokenizer.freed.set()
    assert all(await asyncio.gather(*long))


async def test_whoever_waits_for_what_was_not_begun_is_told_of_the_end():
    tokenizer = Stuck()
    texts = Texts(tokenizer)
    tasks = [asyncio.create_task(texts.encode("a" * 10**6, "it")) for _ in range(9)]
    try:
        for _ in range(2):  # as many as are begun at once
            await asyncio.to_thread(tokenizer.inside.acquire)
        texts.close()
        await until(lambda: sum(task.done() for task in tasks) >= 7)
        ended = [task for task in tasks if task.done()]
        assert len(ended) == 7
        assert all(isinstance(task.exception(), EngineDeadError) for task in ended)
        with pytest.raises(EngineDeadError):
            await texts.encode("Once", "it")
    finally:
        tokenizer.freed.set()
    await asyncio.wait(tasks)


async def test_a_closed_llm_tokenises_no_more():
    llm = AsyncLLM(FakeEngine([]), TOKENIZER)
    assert llm.texts is not None
    llm.close()
    with pytest.raises(EngineDeadError):
        await llm.texts.encode("Once", "it")


class Noting(FastTokenizer):
    """Notes when it is at work."""

    at_work = False

    def encode(self, text: str) -> list[int]:
        self.at_work = True
        ids = super().encode(text)
        self.at_work = False
        return ids


async def test_other_threads_go_on_while_a_text_is_tokenised():
    """They see it at work; a call that held the interpreter would let none look."""
    tokenizer, seen = Noting(resolve(SHIPPED) / "tokenizer.json"), False
    texts = Texts(tokenizer)
    for _ in range(10):  # where this thread is not let run in time, once more
        work = asyncio.create_task(texts.encode("a " * 200_000, "it"))
        while not work.done():
            await asyncio.sleep(0.001)
            seen |= tokenizer.at_work
        if seen:
            break
    assert seen
    texts.close()


class OneByOne(FastTokenizer):
    """Each long text takes it until one may end.

    Attributes:
        begun: texts, in order.
        may_end: how many of the long ones.
    """

    def __init__(self) -> None:
        super().__init__(resolve(SHIPPED) / "tokenizer.json")
        self.begun: list[str] = []
        self.inside, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def encode(self, text: str) -> list[int]:
        self.begun.append(text)
        if len(text) > 1000:
            self.inside.release()
            assert self.may_end.acquire(timeout=60)
        return super().encode(text[:9])


async def test_short_texts_and_other_owners_go_before_many_longer_ones():
    """Who asks for very much keeps nobody waiting for all of it."""
    tokenizer = OneByOne()
    texts = Texts(tokenizer)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(texts.encode("a" * 2000, "many", owner="a"))
        for _ in range(2):
            await asyncio.to_thread(tokenizer.inside.acquire)
        tasks.create_task(texts.encode("a", "short", owner="a"))
        tasks.create_task(texts.encode("b" * 2000, "other", owner="b"))
        await asyncio.sleep(0)
        for _ in range(19):
            tokenizer.may_end.release()
            await asyncio.to_thread(tokenizer.inside.acquire)
        tokenizer.may_end.release(2)
    assert {*tokenizer.begun[2:4]} == {"a", "b" * 2000}, "two were begun before"
    texts.close()
