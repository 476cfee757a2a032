"""One line a request, with its id, and without its words."""

import logging
from typing import Any

import httpx2
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TOKENIZER, TOKENS, Served, served

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
GIVEN = "a-Z_0.9:" + "x" * 120


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The fields of what was logged of requests."""
    caplog.set_level(logging.INFO, "fdjax.serve.http.records")

    def read() -> list[dict[str, Any]]:
        records = [one for one in caplog.records if one.getMessage() == "request"]
        return [getattr(one, "fields") for one in records]  # noqa: B009  (a name that typing does not know)

    return read


async def get(server: Served, path: str, **headers: str) -> httpx2.Response:
    async with server.client as client:
        return await client.get(path, headers=headers)


async def test_an_id_is_taken_and_sent_back(lines: Any):
    with served() as server:
        response = await get(server, "/v1/models", **{"x-request-id": GIVEN})
    assert response.headers["x-request-id"] == GIVEN
    assert lines()[0]["request_id"] == GIVEN


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "é", '"', "a,b"])
async def test_an_id_that_could_not_be_printed_is_replaced(given: str, lines: Any):
    with served() as server:
        async with server.client as client:
            headers = [(b"x-request-id", given.encode())]
            response = await client.get("/v1/models", headers=headers)
    made = response.headers["x-request-id"]
    assert made != given and len(made) == 32
    assert lines()[0]["request_id"] == made


@pytest.mark.parametrize("stream", [False, True])
async def test_a_line_says_what_was_served(stream: bool, lines: Any):
    with served() as server:
        body = PROMPT | {"n": 2, "stream": stream, "max_tokens": 3}
        response = await server.post(COMPLETIONS, body)
    (line,) = lines()
    assert line["request_id"] == response.headers["x-request-id"]
    assert (line["method"], line["path"]) == ("POST", COMPLETIONS)
    assert (line["status"], line["model"], line["n"]) == (200, "tales", 2)
    assert line["prompt_tokens"] == len(TOKENIZER.encode("Once"))
    assert line["output_tokens"] == 6
    assert line["finish_reason"] == "length"
    assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["duration_s"]


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    secret = {"prompt": "my own words", "max_tokens": 2, "cache_salt": "hidden"}
    with served(api_keys=["the key"]) as server:
        async with server.client as client:
            client.headers["authorization"] = "Bearer the key"
            await client.post(f"{COMPLETIONS}?api_key=queried", json=secret)
            await client.post(COMPLETIONS, json=secret | {"n": 0})
    ours = [record for record in caplog.records if record.name.startswith("fdjax")]
    text = "\n".join(f"{record.__dict__}" for record in ours)
    assert COMPLETIONS in text
    for word in ("own words", "hidden", "the key", "queried"):
        assert word not in text


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (COMPLETIONS, PROMPT | {"temperature": -1}, 400, "invalid_request_error"),
        (COMPLETIONS, PROMPT | {"model": "x"}, 404, "model_not_found"),
        ("/no/such", {}, 404, "invalid_request_error"),
        (COMPLETIONS, {"prompt": "a" * 2**20}, 413, "body_too_large"),
    ],
)
async def test_a_line_says_what_was_wrong(
    path: str, body: Any, status: int, error: str, lines: Any
):
    with served() as server:
        response = await server.post(path, body)
    (line,) = lines()
    assert (line["status"], line["error"]) == (status, error)
    assert line["request_id"] == response.headers["x-request-id"]


async def test_a_missing_key_has_a_line(lines: Any):
    with served(api_keys=["first"]) as server:
        response = await server.get("/v1/models")
    assert response.headers["x-request-id"]
    assert lines()[0]["error"] == "invalid_api_key"


async def test_an_engine_that_fails_in_a_stream_has_a_line(lines: Any):
    with served(FakeEngine(TOKENS, fails_at=2)) as server:
        await server.post("/v1/chat/completions", CHAT | {"stream": True})
    (line,) = lines()
    assert (line["status"], line["error"]) == (200, "engine_dead")
    assert line["finish_reason"] == "error"


async def test_a_fault_of_the_server_has_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lines: Any
):
    with served() as server:
        monkeypatch.setattr(server.app.state.server, "model", None)
        response = await get(server, "/v1/models", **{"x-request-id": "abc"})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the server failed; its log says why"
    assert response.headers["x-request-id"] == "abc"
    assert lines()[0]["status"] == 500
    assert any(record.exc_info for record in caplog.records)


async def test_a_fault_in_a_stream_has_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lines: Any
):
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fdjax.serve.http.chat._Chat.deltas", fails)
    with served(FakeEngine(TOKENS)) as server:
        response = await server.post("/v1/chat/completions", CHAT | {"stream": True})
    assert "the server failed; its log says why" in response.text
    assert lines()[0]["error"] == "internal_error"
    (logged,) = (one.exc_info for one in caplog.records if one.exc_info)
    assert logged[0] is ZeroDivisionError


async def test_what_machines_watch_is_no_news(lines: Any):
    with served() as server:
        await server.get("/health")
        await server.get("/metrics")
        assert not lines()
        server.app.state.server.draining = True
        await server.get("/health")
    assert lines()[0]["status"] == 503


async def test_a_long_path_is_cut(lines: Any):
    with served() as server:
        await server.get("/" + "a" * 1000)
    assert len(lines()[0]["path"]) == 200
