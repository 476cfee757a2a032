"""What is done for a request before the engine has it: nothing that is of no use."""

import asyncio
import contextlib
import dataclasses
import json
import threading
from typing import Any

import pytest

from fdjax.serve.grammars import _QUICK_THREADS as THREADS
from fdjax.serve.grammars import Grammars
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, LIMITS, MODEL, TOKENS, listening, served
from tests.support.raw_http import connection, request, still_serves
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CHATS = "/v1/chat/completions"


def never(*_: object) -> Any:
    raise AssertionError("it was rendered")


@pytest.mark.parametrize("path", [CHATS, "/v1/responses"])
async def test_no_chat_is_rendered_that_has_no_room(path: str):
    engine = FakeEngine(TOKENS, max_sequences=0)
    body = CHAT if path == CHATS else {"input": "Once"}
    with served(engine, model=dataclasses.replace(MODEL, chat=never)) as server:
        answer = await server.post(path, body)
        metrics = (await server.get("/metrics")).text
    assert answer.json()["error"]["code"] == "queue_full", answer.text
    assert 'admission_rejections_total{model_name="tales"} 1.0' in metrics


async def test_no_chat_is_rendered_where_the_server_drains():
    with served(model=dataclasses.replace(MODEL, chat=never)) as server:
        server.app.state.server.draining = True
        answer = await server.post(CHATS, CHAT)
    assert answer.json()["error"]["code"] == "draining"


async def test_a_chat_has_as_long_as_its_request_may_take():
    free = threading.Event()
    model = dataclasses.replace(MODEL, chat=lambda *_: free.wait(30))
    limits = dataclasses.replace(LIMITS, seconds=0.1)
    with served(model=model, limits=limits) as server:
        answer = await server.post(CHATS, CHAT)
        free.set()
    assert answer.status_code == 504


async def test_a_grammar_whose_client_has_gone_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
):
    free, tried = threading.Event(), list[str]()

    def compiled(_: Grammars, params: Any, **_others: Any) -> None:
        tried.append(params.structured_outputs.regex)
        assert free.wait(30)

    monkeypatch.setattr(Grammars, "compile", compiled)

    def asking(regex: str) -> bytes:
        form = {"prompt": "a", "structured_outputs": {"regex": regex}}
        data = json.dumps(form).encode()
        return request(f"Content-Length: {len(data)}\r\n", data)

    with served() as server, listening(server.app) as port:
        underway = server.app.state.server.underway
        async with contextlib.AsyncExitStack() as stack:
            for number in range(THREADS):
                _, writer = await stack.enter_async_context(connection(port))
                writer.write(asking(f"busy{number}"))
            await asyncio.to_thread(wait_until, lambda: len(tried) == THREADS)
            async with connection(port) as (_, writer):
                writer.write(asking("gone"))
                await asyncio.to_thread(wait_until, lambda: len(underway) > THREADS)
            await asyncio.to_thread(wait_until, lambda: len(underway) == THREADS)
            free.set()
            await asyncio.to_thread(wait_until, lambda: not len(underway))
        await still_serves(port)
    assert "gone" not in tried
