"""What a request asks for as a whole: how much it may be, and what is cut off."""

import dataclasses
from typing import Any

import pytest

from tests.support.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.support.http_server import (
    CHAT,
    LIMITS,
    MODEL,
    PROMPT,
    TOKENIZER,
    TOKENS,
    served,
)

pytestmark = pytest.mark.anyio

COMPLETIONS, CHATS, EMBEDDINGS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
)
LONG = "the fox and the owl " * 12
BEGIN, *REST = TOKENIZER.encode(LONG)
IDS = [*range(5, 205)]
NAME = "truncate_prompt_tokens"


async def read(path: str, body: dict[str, Any]) -> list[int]:
    """The prompt that the engine reads."""
    engine = FakeEngine(TOKENS)
    with served(engine) as server:
        response = await server.post(path, body)
    assert response.status_code == 200, response.text
    prompt = list(engine.added[0].request.prompt)
    assert response.json()["usage"]["prompt_tokens"] == len(prompt)
    return prompt


# --- Prompts that are cut -------------------------------------------------------------


async def test_the_last_token_ids_are_left():
    assert len(IDS) > MAX_MODEL_LEN
    assert await read(COMPLETIONS, {"prompt": IDS, NAME: 10}) == IDS[-10:]
    assert await read(COMPLETIONS, {"prompt": IDS[:7], NAME: 10}) == IDS[:7]
    assert await read(EMBEDDINGS, {"input": IDS, NAME: 10}) == IDS[-10:]


async def test_a_text_keeps_what_every_text_begins_with():
    assert len(REST) >= MAX_MODEL_LEN
    assert await read(COMPLETIONS, {"prompt": LONG, NAME: 10}) == [BEGIN, *REST[-9:]]
    assert await read(COMPLETIONS, {"prompt": LONG, NAME: 1}) == REST[-1:]
    assert await read(COMPLETIONS, {"prompt": "Once", NAME: 10}) == TOKENIZER.encode(
        "Once"
    )


async def test_the_last_tokens_of_a_chat_are_left():
    body = {"messages": [{"role": "user", "content": LONG}]}
    assert await read(CHATS, body | {NAME: 10}) == REST[-10:]


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        (COMPLETIONS, {"prompt": IDS, "max_tokens": 20}, MAX_MODEL_LEN - 20),
        (CHATS, {"messages": [{"role": "user", "content": LONG}]}, MAX_MODEL_LEN - 1),
        (EMBEDDINGS, {"input": IDS}, MAX_MODEL_LEN),
    ],
)
async def test_as_many_as_there_is_room_for(
    path: str, fields: dict[str, Any], count: int
):
    assert len(await read(path, fields | {NAME: -1})) == count


async def test_an_echo_is_what_was_read():
    body = {"prompt": LONG, NAME: 5, "echo": True, "return_token_ids": True}
    with served() as server:
        (choice,) = (await server.post(COMPLETIONS, body)).json()["choices"]
    assert choice["prompt_token_ids"] == [BEGIN, *REST[-4:]]
    assert choice["text"].startswith(TOKENIZER.decode(REST[-4:]))


@pytest.mark.parametrize("count", [0, -2, MAX_MODEL_LEN + 1, 10**30])
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, EMBEDDINGS])
async def test_no_prompts_have_that_length(path: str, count: int):
    body = {COMPLETIONS: PROMPT, CHATS: CHAT}.get(path, {"input": "Once"})
    with served() as server:
        response = await server.post(path, body | {NAME: count})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, NAME)
    assert error["message"].startswith(f"{NAME} is {count}; use 1 to {MAX_MODEL_LEN}")


async def test_no_room_is_left():
    with served() as server:
        response = await server.post(
            COMPLETIONS, PROMPT | {NAME: -1, "max_tokens": MAX_MODEL_LEN}
        )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, NAME)
    assert "lower max_tokens" in error["message"]


@pytest.mark.parametrize(
    ("path", "name"),
    [(COMPLETIONS, "prompt"), (CHATS, "messages"), (EMBEDDINGS, "input")],
)
async def test_a_text_that_cannot_fit_is_refused_unread_all_the_same(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> Any:
        raise AssertionError("it was read")

    for method in ("encode", "encode_plain"):
        monkeypatch.setattr(TOKENIZER, method, fail)
    text: Any = "a " * 10**5
    value = [{"role": "user", "content": text}] if path == CHATS else text
    with served(model=dataclasses.replace(MODEL, chat=fail)) as server:
        response = await server.post(path, {name: value, NAME: 10})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert "max_bytes_per_token" in error["message"]


# --- Log-probabilities of prompts -----------------------------------------------------

SCORES = {"prompt": [5] * 30, "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "fields", "count", "param"),
    [
        (COMPLETIONS, SCORES | {"prompt_logprobs": 3}, 120, "prompt_logprobs"),
        (COMPLETIONS, SCORES | {"echo": True, "logprobs": 3}, 120, "logprobs"),
        (COMPLETIONS, SCORES | {"prompt_logprobs": 0, "n": 4}, 120, "prompt_logprobs"),
        (
            COMPLETIONS,
            {"prompt": [[5] * 30] * 2, "max_tokens": 1, "prompt_logprobs": 1},
            120,
            "prompt_logprobs",
        ),
        (
            CHATS,
            {"messages": [{"role": "user", "content": LONG[:200]}]}
            | {"prompt_logprobs": 20},
            None,
            "prompt_logprobs",
        ),
    ],
)
async def test_an_answer_has_so_many_scores(
    path: str, fields: dict[str, Any], count: int | None, param: str
):
    engine = FakeEngine(TOKENS)
    with served(engine, limits=dataclasses.replace(LIMITS, logprobs=100)) as server:
        refused = await server.post(path, fields)
        assert not engine.added, "it was read"
        cut = await server.post(path, fields | {NAME: 2, "n": 1})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param), error
    assert f"asks for {'' if count is None else count}" in error["message"]
    assert "at most 100" in error["message"]
    assert cut.status_code == 200, "of fewer tokens there may be as many each"


async def test_beams_have_as_many_logprobs_as_others():
    beams = PROMPT | {"use_beam_search": True, "n": 4, "max_tokens": 6, "logprobs": 4}
    with served(limits=dataclasses.replace(LIMITS, logprobs=100)) as server:
        error = (await server.post(COMPLETIONS, beams)).json()["error"]
    assert error["param"] == "logprobs"
    assert "asks for 120 at once" in error["message"]
