"""Long JSON is read aside, one body after the other; what is wrong with it is told."""

import asyncio
import json
import threading
from typing import Any

import pytest

from fdjax.serve.http import json_aside
from fdjax.serve.http.json_size import MAX_NESTED
from tests.support.http_server import LIMITS, PROMPT, served

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
LONG = PROMPT | {"user": "a" * (LIMITS.body_bytes - 1000)}


async def test_one_after_the_other_and_not_where_all_else_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    read, loads, free = list[str](), json.loads, threading.Event()

    def counted(body: bytes) -> Any:
        read.append(threading.current_thread().name)
        assert len(body) < 2**16 or free.wait(30)
        return loads(body)

    monkeypatch.setattr(json_aside.json, "loads", counted)
    with served() as server:
        long = [asyncio.create_task(server.post(PATH, LONG)) for _ in range(5)]
        while not read:
            await asyncio.sleep(0.001)
        assert (await server.post(PATH, PROMPT)).status_code == 200
        assert len(read) == 2, "the others wait for the first"
        free.set()
        answers = await asyncio.gather(*long)
    assert {answer.status_code for answer in answers} == {200}
    assert read.count("MainThread") == 1
    assert len({*read}) == 2


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/tokenize"])
async def test_what_is_wrong_with_long_ones_is_told(path: str):
    body = b'{"prompt": "' + b"a" * 2**17 + b'", '
    deep = b'{"prompt": ' + b"[" * (MAX_NESTED - 2)  # an object, and an entry of it
    with served() as server:
        for wrong in (body, deep, b'"' + b"\xff" * 2**17):
            async with server.client as client:
                headers = {"content-type": "application/json"}
                answer = await client.post(path, content=wrong, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "invalid_json", answer.text
