"""Texts that cannot fit are refused unread, and others notice nothing."""

import asyncio
import dataclasses
from typing import Any

import httpx2
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    LIMITS,
    MODEL,
    TOKENIZER,
    TOKENS,
    listening,
    served,
)
from tests.support.quiet import quiet

pytestmark = pytest.mark.anyio

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
LONG = "a " * (LIMITS.body_bytes // 2 - 1000)
TURN = {"role": "user", "content": "a " * 80}
CASES: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": LONG}, "prompt"),
    (COMPLETIONS, {"prompt": ["Once", LONG]}, "prompt"),
    (COMPLETIONS, {"prompt": [LONG[: len(LONG) // 6]] * 6}, "prompt"),
    (CHATS, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    (CHATS, {"messages": [TURN] * 4000}, "messages"),
    ("/tokenize", {"prompt": " " * len(LONG)}, "prompt"),
    ("/tokenize", {"messages": [TURN] * 4000}, "messages"),
]


@pytest.mark.parametrize(("path", "body", "param"), CASES)
async def test_refused_before_it_is_read(
    path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> Any:
        raise AssertionError("it was read")

    for name in ("encode", "encode_plain"):
        monkeypatch.setattr(TOKENIZER, name, fail)
    with served(model=dataclasses.replace(MODEL, chat=fail)) as server:
        response = await server.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert "max_bytes_per_token" in error["message"]


async def test_others_notice_nothing():
    """To read the first two takes seconds."""
    limits = dataclasses.replace(LIMITS, body_bytes=2**25)
    longest = [(COMPLETIONS, {"prompt": "a " * (2**24 - 1000)})] * 2
    with (
        served(FakeEngine(TOKENS, step_s=0.005), limits=limits) as server,
        listening(server.app) as port,
        quiet(port) as beside,
        beside.undisturbed(),
    ):
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            others = [(path, body) for path, body, _ in CASES]
            posts = [client.post(path, json=body) for path, body in longest + others]
            answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {400}
