"""`response_format` and `structured_outputs`, from the body to the text."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fdjax import LLM
from fdjax.serve.grammars import Grammars
from fdjax.serve.http.wiring import application
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TOKENS, served

pytestmark = pytest.mark.anyio

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " "},
}
STRICT = {"name": "a", "schema": SCHEMA, "strict": True, "description": "An a."}
FORMS: list[tuple[dict[str, Any], str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": STRICT}},
        r'\{ ?"a" ?: ?"[xy]" ?\}',
    ),
    ({"response_format": {"type": "regex", "regex": "(yes|no)!"}}, "(yes|no)!"),
    ({"response_format": {"type": "grammar", "grammar": 'start: "a"'}}, "a"),
    ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
    ({"structured_outputs": {"json": SCHEMA}}, r'\{ ?"a" ?: ?"[xy]" ?\}'),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
    (
        {"structured_outputs": {"regex": "[ab]{3}"}, "skip_special_tokens": False},
        "[ab]{3}",
    ),
]


@pytest.fixture
def client(llm: LLM) -> Iterator[httpx2.AsyncClient]:
    app, running = application(llm.loaded, names=["tales"], sampling={})
    transport = httpx2.ASGITransport(app)
    yield httpx2.AsyncClient(transport=transport, base_url="http://test")
    running.close()


async def test_samples_in_every_form_beside_a_story(client: httpx2.AsyncClient):
    story = PROMPT | {"temperature": 0}
    (alone,) = (await client.post(COMPLETIONS, json=story)).json()["choices"]
    sampled = {"n": 2, "temperature": 1, "seed": 1, "max_tokens": 60}
    bodies = [
        (COMPLETIONS, story),
        *((COMPLETIONS, PROMPT | sampled | form) for form, _ in FORMS),
        *((CHATS, CHAT | sampled | form) for form, _ in FORMS),
    ]
    posts = [client.post(path, json=body) for path, body in bodies]
    answers = [one.json()["choices"] for one in await asyncio.gather(*posts)]
    assert answers[0] == [alone]
    for choices, (_, pattern) in zip(answers[1:], FORMS * 2, strict=True):
        assert [choice["finish_reason"] for choice in choices] == ["stop"] * 2
        for choice in choices:
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert re.fullmatch(pattern, text)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
async def test_a_stream(client: httpx2.AsyncClient, path: str):
    good = PROMPT if path == COMPLETIONS else CHAT
    form = {"structured_outputs": {"regex": "yes, yes, yes"}}
    body = good | form | {"stream": True, "temperature": 0}
    response = await client.post(path, json=body)
    events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    choices = [event["choices"][0] for event in events]
    parts = [c["text"] if "text" in c else c["delta"].get("content") for c in choices]
    assert "".join(part or "" for part in parts) == "yes, yes, yes"
    assert len([part for part in parts if part]) > 1
    assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
async def test_a_text_is_any_text(path: str):
    good = PROMPT if path == COMPLETIONS else CHAT
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        for form in ({"type": "text"}, None):
            await server.post(path, good | {"response_format": form})
    assert [sequence.request.grammar for sequence in engine.added] == [None, None]


async def test_both_words_at_once():
    body = PROMPT | {
        "response_format": {"type": "json_object"},
        "structured_outputs": {"regex": "a"},
    }
    with served() as server:
        response = await server.post(COMPLETIONS, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"


async def test_without_a_tokenizer():
    body = {"prompt": [5], "response_format": {"type": "json_object"}}
    with served(tokenizer=None) as server:
        response = await server.post(COMPLETIONS, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"


async def test_a_good_one_is_served_while_a_bad_one_compiles(
    monkeypatch: pytest.MonkeyPatch,
):
    """Neither the loop nor the engine waits for the compiler."""
    compile, begun, free = Grammars.compile, threading.Event(), threading.Event()

    def held(self: Grammars, params: Any, **options: Any) -> Any:
        begun.set()
        try:
            return compile(self, params, **options)
        finally:
            assert free.wait(60)

    monkeypatch.setattr(Grammars, "compile", held)
    slow = {"json": {"type": "integer", "multipleOf": 999961}}
    with served() as server:
        bad = asyncio.create_task(
            server.post(COMPLETIONS, PROMPT | {"structured_outputs": slow})
        )
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            assert (await server.post(COMPLETIONS, PROMPT)).status_code == 200
        assert not bad.done()
        free.set()
        assert (await bad).status_code == 400
