"""What beam searches cost: the tokens of all beams, whatever comes back of them."""

import asyncio
import contextlib
import json
import pathlib
import re
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from fdjax.engine.engine import Engine
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.keyring import Keyring
from tests.support.engines import shallow_model, tiny_engine
from tests.support.http_server import served

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
STEPS, WIDTH = 20, 3
PROMPT = [5, 6]
SEARCH: dict[str, Any] = {
    "prompt": PROMPT, "use_beam_search": True, "beam_width": WIDTH, "n": 1,
    "max_tokens": STEPS, "ignore_eos": True,
}  # fmt: skip
FULL = STEPS * WIDTH
# Of a search that ends when the engine has gone eight steps, and is in another one.
MOST = 9 * WIDTH


@dataclass
class Asked:
    """A server whose engine goes step by step, and a client of it with a key."""

    client: httpx2.AsyncClient
    llm: AsyncLLM
    engine: Engine
    may_step: threading.Semaphore

    async def post(self, request_id: str = "mine", **fields: Any) -> httpx2.Response:
        headers = {"x-request-id": request_id}
        return await self.client.post(PATH, json=SEARCH | fields, headers=headers)

    async def counted(self, name: str) -> int:
        """A metric of the only series that it has."""
        text = (await self.client.get("/metrics")).text
        (told,) = re.findall(rf"^fdjax:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        return int(float(told))

    @property
    async def charged(self) -> int:
        return await self.counted("key_generation_tokens_total")

    async def until_charged(self, least: int) -> None:
        async with asyncio.timeout(60):
            while await self.charged < least:
                await asyncio.sleep(0.001)

    async def settled(self) -> int:
        """What is charged once nothing is under way any more."""
        async with asyncio.timeout(60):
            while await self.counted("num_requests_unfinished"):
                await asyncio.sleep(0.001)
        return await self.charged

    @contextlib.asynccontextmanager
    async def begun_together(self, count: int) -> AsyncGenerator[None]:
        """Has the engine take so many requests of the block before it steps."""
        running: Any = self.llm._running
        free = threading.Event()
        running.thread._tell(free.wait)
        try:
            yield
            async with asyncio.timeout(60):
                while running.thread._commands.qsize() < count:
                    await asyncio.sleep(0.001)
        finally:
            free.set()

    def go(self, num_steps: int = 10**6) -> None:
        """Lets the engine take so many steps more."""
        self.may_step.release(num_steps)


type Ask = Callable[..., contextlib.AbstractAsyncContextManager[Asked]]


@pytest.fixture
def asking(tmp_path: pathlib.Path) -> Ask:
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)

    @contextlib.asynccontextmanager
    async def asking(
        tokens_per_minute: int = 10**6, **options: Any
    ) -> AsyncGenerator[Asked]:
        file.write_text(
            f'[keys.a]\nkey = "a"\ntokens_per_minute = {tokens_per_minute}\n'
        )
        engine: Any = tiny_engine(shallow_model(), **({"max_num_seqs": 8} | options))
        may_step, step = threading.Semaphore(0), engine.step

        def waiting() -> Any:
            may_step.acquire()
            return step()

        engine.step = waiting
        with served(engine, keyring=Keyring(file=file)) as server:
            async with server.client as client:
                client.headers["authorization"] = "Bearer a"
                asked = Asked(client, server.llm, engine, may_step)
                try:
                    yield asked
                finally:
                    asked.go()

    return asking


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": WIDTH},
        {"stream": True},
        {"stream": True, "n": 2, "stream_options": {"include_best": True}},
        {"stop": ["zzzz"]},
    ],
    ids=["one", "all", "streamed", "best", "judged"],
)
async def test_every_beam_is_charged_and_no_output_besides(
    asking: Ask, fields: dict[str, Any]
):
    async with asking() as asked:
        asked.go()
        answer = await asked.post(**fields)
        assert answer.status_code == 200, answer.text
        assert await asked.settled() == FULL
        assert await asked.counted("generation_tokens_total") == FULL
        assert await asked.counted("key_prompt_tokens_total") == len(PROMPT)
        if "stream" not in fields:
            made = answer.json()["usage"]["completion_tokens"]
            assert made == STEPS * fields.get("n", 1), "what is returned"


async def test_a_search_that_finds_nothing_is_charged(asking: Ask):
    async with asking() as asked:
        asked.go()
        # The only token that may come ends the output, and none may end it so soon.
        fields: dict[str, Any] = {"allowed_token_ids": [7], "stop_token_ids": [7]}
        answer = await asked.post(**fields, min_tokens=3)
        assert answer.json()["error"]["code"] == "nothing_found"
        charged = await asked.settled()
        assert charged >= WIDTH and charged % WIDTH == 0


async def test_a_search_under_way_uses_the_quota_up(asking: Ask):
    """Nobody has read a token of it, and its key waits already."""
    async with asking(tokens_per_minute=4 * WIDTH) as asked:
        searching = asyncio.create_task(asked.post())
        asked.go(8)
        await asked.until_charged(4 * WIDTH)
        more = await asked.post("other", max_tokens=1)
        assert more.status_code == 429
        assert "tokens_per_minute of the key 'a' is 12" in more.text
        assert not searching.done()
        asked.go()
        assert (await searching).status_code == 200, "who was let in is served"
        assert await asked.settled() == FULL


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_that_is_aborted_is_charged_for_what_it_had(
    asking: Ask, stream: bool
):
    async with asking() as asked:
        searching = asyncio.create_task(asked.post(stream=stream))
        asked.go(8)
        await asked.until_charged(3 * WIDTH)
        ended = await asked.client.post("/v1/requests/mine/abort")
        assert ended.status_code == 200
        asked.go()
        answer = await searching
        if not stream:
            assert answer.json()["usage"]["completion_tokens"] == 0
        charged = await asked.settled()
        assert 3 * WIDTH <= charged <= MOST and charged % WIDTH == 0


async def test_a_client_that_leaves_is_charged_for_what_it_had(asking: Ask):
    async with asking() as asked:
        searching = asyncio.create_task(asked.post())
        asked.go(8)
        await asked.until_charged(3 * WIDTH)
        searching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await searching
        asked.go()
        charged = await asked.settled()
        assert 3 * WIDTH <= charged <= MOST and charged % WIDTH == 0


async def test_what_is_computed_again_is_charged_once(asking: Ask):
    """Room for one search and a little: of two, one begins anew."""
    async with asking(num_pages=13) as asked:
        asked.go()
        async with asked.begun_together(2):
            both = [
                asyncio.create_task(asked.post("x")),
                asyncio.create_task(asked.post("y", prompt=[7])),
            ]
        answers = await asyncio.gather(*both)
        assert [one.status_code for one in answers] == [200, 200]
        assert await asked.counted("num_preemptions_total") > 0
        assert await asked.settled() == 2 * FULL


async def test_an_ordinary_request_is_charged_what_it_has(asking: Ask):
    async with asking() as asked:
        asked.go()
        body = {"prompt": PROMPT, "max_tokens": 5, "n": 2, "ignore_eos": True}
        answer = await asked.client.post(PATH, json=body)
        assert json.loads(answer.text)["usage"]["completion_tokens"] == 10
        assert await asked.settled() == 10
