"""Large answers: others have their turn while they are made and while they are sent."""

import asyncio
import json
from typing import Any

import pytest

from fdjax.serve.http import encoding
from fdjax.serve.http.whole import PIECE_BYTES
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import TEXT, TOKENS, served

pytestmark = pytest.mark.anyio

COUNT = 300 * len(TOKENS)
LARGE: dict[str, Any] = {"max_tokens": COUNT, "n": 2}
REQUESTS = {
    "/v1/completions": {"prompt": "Once", "logprobs": 20},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Once"}],
        "logprobs": True,
        "top_logprobs": 20,
    },
}


async def answer(path: str) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """A large answer, and of each piece its bytes and the loop's round it came in."""
    body = json.dumps(REQUESTS[path] | LARGE).encode()
    received = [{"type": "http.request", "body": body, "more_body": False}]
    pieces: list[bytes] = []
    rounds: list[int] = []
    now = 0

    async def count_rounds() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    async def receive() -> Any:
        if received:
            return received.pop()
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        else:
            pieces.append(message["body"])
            rounds.append(now)

    engine = FakeEngine(TOKENS * 300, per_step=8, max_model_len=10**6)
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    with served(engine) as server:
        counting = asyncio.create_task(count_rounds())
        await server.app(scope, receive, send)
        counting.cancel()
    sizes = zip(map(len, pieces), rounds, strict=True)
    return json.loads(b"".join(pieces)), list(sizes)


@pytest.mark.parametrize("path", REQUESTS)
async def test_others_have_their_turn(path: str, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    encode = encoding.ENCODER.encode

    def counted(content: Any) -> str:
        text = encode(content)
        made.append(len(text))
        return text

    monkeypatch.setattr(encoding.ENCODER, "encode", counted)
    content, pieces = await answer(path)
    assert len(content["choices"]) == 2
    size = sum(size for size, _ in pieces)
    assert size > 10 * PIECE_BYTES
    assert max(made) < size / 10, "nothing large is encoded at once"
    assert max(size for size, _ in pieces) < 2 * PIECE_BYTES
    written = [now for size, now in pieces if size]
    assert len(set(written)) == len(written), "others came between any two"


async def test_a_large_answer_has_all():
    content, _ = await answer("/v1/completions")
    for choice in content["choices"]:
        assert choice["text"] == TEXT * 300
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == TEXT * 300
        assert logprobs["token_logprobs"] == [-0.5] * COUNT
        assert len(logprobs["top_logprobs"]) == COUNT
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert choice["finish_reason"] == "stop"
    content, _ = await answer("/v1/chat/completions")
    for choice in content["choices"]:
        assert choice["message"]["content"] == TEXT * 300
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert "".join(tokens) == TEXT * 300


async def test_an_answer_says_how_long_it_is():
    with served() as server:
        response = await server.post("/v1/completions", {"prompt": "Once"})
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.json()["choices"][0]["logprobs"] is None
