"""What nobody should send: refused at once, by name, and the next request is served."""

import asyncio
import functools
import json
import re
from typing import Any

import httpx2
import pytest

from tests.support.fake_engine import MAX_MODEL_LEN, VOCAB_SIZE
from tests.support.http_server import CHAT, LIMITS, PROMPT, TEXT, Served, served

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
RESPONSES = "/v1/responses"
NAN, INFINITY = float("nan"), float("inf")
SURROGATE = "half a \ud800 pair"
DEEP = '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"
MANY = 100_000
DEEP_SCHEMA: Any = functools.reduce(lambda one, _: {"items": one}, range(200), {})
# A chain of rules so long that llguidance overflows its stack.
RULES = "".join(f"a{i}: a{i + 1}\n" for i in range(2000)) + 'start: a0\na2000: "x"\n'


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


FIELDS: list[tuple[str, Any]] = [
    ("temperature", NAN),
    ("temperature", INFINITY),
    ("temperature", -1),
    ("temperature", "1"),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", NAN),
    ("top_k", 1.5),
    ("top_k", -5),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("frequency_penalty", -INFINITY),
    ("n", 0),
    ("n", LIMITS.n + 1),
    ("n", 10**30),
    ("n", "1"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**40),
    ("max_tokens", True),
    ("min_tokens", -1),
    ("min_tokens", 99),
    ("seed", -1),
    ("seed", 2**63),
    ("stop", ""),
    ("stop", ["a"] * 17),
    ("stop", "a" * 1025),
    ("stop", [1]),
    ("stop", {"a": 1}),
    ("stop", SURROGATE),
    ("stop_token_ids", [VOCAB_SIZE]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [0] * 65),
    ("stop_token_ids", 3),
    ("logit_bias", {str(VOCAB_SIZE): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"one": 1}),
    ("logit_bias", {"1": NAN}),
    ("logit_bias", {"1": "1"}),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
    ("logit_bias", [1]),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("priority", 2**31),
    ("priority", -1),
    ("priority", 1),
    ("cache_salt", "a" * 257),
    ("ignore_eos", 1),
    ("user", SURROGATE),
    ("cache_salt", SURROGATE),
    ("model", SURROGATE),
    ("response_format", "json"),
    ("response_format", {}),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_object", "regex": "a"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
    ("response_format", schema_format({"type": "nonsense"})),
    ("response_format", schema_format({"minimum": NAN})),
    ("response_format", schema_format(DEEP_SCHEMA)),
    ("response_format", schema_format({"enum": ["a" * 40_000]})),
    ("response_format", schema_format({"type": "integer", "multipleOf": 999983})),
    ("response_format", {"type": "regex", "regex": "(((a{1,999}){1,999}){1,999}){9}("}),
    ("response_format", {"type": "regex", "regex": SURROGATE}),
    ("response_format", {"type": "grammar", "grammar": RULES}),
    ("structured_outputs", {}),
    ("structured_outputs", [1]),
    ("structured_outputs", {"xml": "a"}),
    ("structured_outputs", {"regex": "a", "choice": ["a"]}),
    ("structured_outputs", {"choice": ["a"] * 2000}),
    ("structured_outputs", {"grammar": "start: foo"}),
    ("best_of", 2),
    ("best_of", True),
    (SURROGATE, 1),
]
PROMPTS: list[Any] = [
    None,
    [],
    [[]],
    5,
    {"a": 1},
    [1.5],
    [True],
    ["Once", None],
    [["Once"]],
    [-1],
    [VOCAB_SIZE],
    [10**30],
    [1] * MAX_MODEL_LEN,
    "Once " * MAX_MODEL_LEN,
    ["Once"] * (LIMITS.prompts + 1),
    [None] * MANY,
    [{}] * MANY,
    SURROGATE,
    [SURROGATE],
]
MESSAGES: list[Any] = [
    None,
    [],
    "Once",
    [1],
    [{}],
    [{"role": "user"}],
    [{"role": "root", "content": "Once"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": SURROGATE}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "file:///"}]}],
    [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}],
    [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    [{"role": "user", "content": "Once", "tool_calls": []}],
    [{"role": "user", "content": "Once " * MAX_MODEL_LEN}],
    [{"role": "user", "content": "a"}] * (LIMITS.messages + 1),
    [None] * MANY,
    [{"role": "user", "content": "a"}] * (MANY // 10),
    [{"role": "assistant", "tool_calls": [{"function": {}}] * (MANY // 10)}],
]


async def refused(
    server: Served, path: str, content: str | bytes, *, status: int = 400
) -> dict[str, Any]:
    """The error object of a request that is refused, in the end."""
    headers = {"content-type": "application/json"}
    async with asyncio.timeout(60), server.client as client:
        response = await client.post(path, content=content, headers=headers)
    assert response.status_code == status, response.text
    assert not server.engine.added
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 1000
    return error


async def still_serves(server: Served) -> None:
    response = await server.post(COMPLETIONS, PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(("field", "value"), FIELDS, ids=str)
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
async def test_a_bad_field_is_named(path: str, field: str, value: Any):
    good = PROMPT if path == COMPLETIONS else CHAT | {"max_tokens": 32}
    with served() as server:
        error = await refused(server, path, json.dumps(good | {field: value}))
        assert error["param"] == field.replace("\ud800", "?")
        assert error["type"] == "invalid_request_error"
        await still_serves(server)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda value: repr(value)[:30])
async def test_a_bad_prompt_is_named(prompt: Any):
    with served() as server:
        error = await refused(server, COMPLETIONS, json.dumps({"prompt": prompt}))
        assert error["param"] == "prompt"
        await still_serves(server)


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda value: repr(value)[:30])
async def test_bad_messages_are_named(messages: Any):
    with served() as server:
        error = await refused(server, CHATS, json.dumps({"messages": messages}))
        assert error["param"] in ("messages", "tool_calls")
        await still_serves(server)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": 1, "echo": True, "n": 2}, "n"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"prompt": ["Once"] * 8, "n": 3}, "n"),
        (CHATS, {"logprobs": 1}, "logprobs"),
        (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHATS, {"top_logprobs": 1}, "top_logprobs"),
        (CHATS, {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ("/tokenize", {"max_tokens": 1}, "max_tokens"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": SURROGATE}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**40]}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [None] * MANY}, "tokens"),
    ],
    ids=str,
)
async def test_bad_combinations(path: str, fields: dict[str, Any], param: str):
    good = {COMPLETIONS: PROMPT, CHATS: CHAT}.get(path, {})
    with served() as server:
        error = await refused(server, path, json.dumps(good | fields))
        assert error["param"] == param


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"prompt"',
        b"\xff\xfe",
        b'{"prompt": "Once", "seed": ' + b"9" * 10_000 + b"}",
        DEEP.encode(),
        DEEP[: len(DEEP) // 2].encode(),
    ],
    ids=lambda content: repr(content)[:30],
)
async def test_what_is_no_json_object(content: bytes):
    with served() as server:
        await refused(server, COMPLETIONS, content)
        await still_serves(server)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{", None),
        (b'{"prompt": "\xff"}', None),
        (b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", None),
        (DEEP.encode(), None),
        (b'{"prompt": "\xed\xa0\x80"}', "prompt"),
        (json.dumps({"prompt": SURROGATE}).encode(), "prompt"),
        (json.dumps(PROMPT | {"user": SURROGATE}).encode(), "user"),
        (json.dumps(PROMPT | {"stop": [SURROGATE]}).encode(), "stop"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_what_is_no_json_has_a_code(content: bytes, param: str | None):
    with served() as server:
        error = await refused(server, COMPLETIONS, content)
    assert (error["code"], error["param"]) == ("invalid_json", param)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": [[]] * MANY}, "prompt"),
        (COMPLETIONS, PROMPT | {"stop": ["a"] * MANY}, "stop"),
        (
            COMPLETIONS,
            PROMPT | {"metadata": {str(i): 1 for i in range(MANY)}},
            "metadata",
        ),
        (CHATS, CHAT | {"tools": [{"type": "function"}] * (MANY // 10)}, "tools"),
        (
            RESPONSES,
            {"input": "a", "metadata": {str(i): 1 for i in range(MANY)}},
            "metadata",
        ),
        (
            CHATS,
            {"messages": [{"role": "user", "content": [{}] * MANY}]},
            "messages",
        ),
        ("/detokenize", {"tokens": [5] * (MAX_MODEL_LEN + 1)}, "tokens"),
    ],
)
async def test_more_entries_than_may_be_walked(
    path: str, fields: dict[str, Any], param: str
):
    with served() as server:
        answer = await server.post(path, fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert re.search(
        rf"{param} has \d+ (entries; use at most 4096|ids, but)", str(error)
    )


async def test_a_hundred_thousand_unknown_fields():
    body = PROMPT | {f"field{i}": i for i in range(30_000)}
    with served() as server:
        error = await refused(server, COMPLETIONS, json.dumps(body))
    assert error["param"] == "field0"


async def test_another_content_type_is_refused():
    with served() as server:
        async with server.client as client:
            response = await client.post(COMPLETIONS, content=json.dumps(PROMPT))
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


async def test_a_model_that_is_not_served():
    with served() as server:
        error = await refused(
            server, COMPLETIONS, json.dumps(PROMPT | {"model": "gpt"}), status=404
        )
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'tales'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", COMPLETIONS, 405), ("POST", "/no/such", 404), ("GET", "/redoc", 404)],
)
async def test_paths_that_are_not_there(method: str, path: str, status: int):
    with served() as server:
        async with server.client as client:
            response: httpx2.Response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"]


async def test_a_fault_of_ours_tells_nothing(monkeypatch: pytest.MonkeyPatch):
    with served() as server:

        async def broken(*_: Any, **__: Any) -> Any:
            raise OSError("/a/secret/path")

        monkeypatch.setattr(server.llm, "start", broken)
        response = await server.post(COMPLETIONS, PROMPT)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["type"] == "internal_error"
