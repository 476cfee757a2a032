"""schemathesis: whatever the OpenAPI document allows or forbids is answered as it says.

Bounds that depend on the model or on several fields are not in the document, and what
it allows may be refused: the check `positive_data_acceptance` is left out. The plugin
for pytest does not know this pytest; the strategies need none.
"""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TEXT, TOKENS, served

MAX_EXAMPLES = 40
# Generating from a document is slow, and most of what is made breaks its rules.
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


POSITIVE = schemathesis.GenerationMode.POSITIVE
NEGATIVE = schemathesis.GenerationMode.NEGATIVE
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "a", "b": None}}


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with served(FakeEngine(TOKENS, per_step=100)) as server:
        yield schemathesis.openapi.from_asgi("/openapi.json", server.app)


@pytest.mark.parametrize(
    ("method", "path", "modes"),
    [
        ("POST", "/v1/completions", [POSITIVE, NEGATIVE]),
        ("POST", "/v1/chat/completions", [POSITIVE, NEGATIVE]),
        ("POST", "/v1/embeddings", [POSITIVE, NEGATIVE]),
        ("POST", "/v1/responses", [POSITIVE, NEGATIVE]),
        ("POST", "/tokenize", [POSITIVE, NEGATIVE]),
        ("POST", "/detokenize", [POSITIVE, NEGATIVE]),
        ("POST", "/v1/requests/{request_id}/abort", [POSITIVE]),
        ("GET", "/v1/models", [POSITIVE]),
        ("GET", "/v1/models/{model}", [POSITIVE]),
        ("GET", "/version", [POSITIVE]),
        ("GET", "/ping", [POSITIVE]),
        ("GET", "/health", [POSITIVE]),
        ("GET", "/health/live", [POSITIVE]),
        ("GET", "/health/ready", [POSITIVE]),
        ("GET", "/metrics", [POSITIVE]),
    ],
)
def test_every_answer_is_as_documented(api: Any, method: str, path: str, modes: Any):
    @given(data=st.data())
    @settings(
        max_examples=MAX_EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=SLOW,
    )
    def check(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(modes))
        case = data.draw(api[path][method].as_strategy(generation_mode=mode))
        case.call_and_validate(checks=CHECKS)

    check()
    good = api["/v1/completions"]["POST"].Case(
        body=PROMPT, media_type="application/json"
    )
    assert good.call().json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "Once"}),
    ],
)
def test_every_event_is_as_documented(api: Any, path: str, body: dict[str, Any]):
    """Hardly any body that is generated is right and asks for a stream."""
    case = api[path]["POST"].Case(
        body=body | {"stream": True}, media_type="application/json"
    )
    response = case.call_and_validate(checks=CHECKS)
    assert response.headers["content-type"][0].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT | {"stop": [], "bad_words": [], "best_of": 1}),
        ("/v1/completions", PROMPT | {"stop_token_ids": [], "logit_bias": {}}),
        ("/v1/chat/completions", CHAT | {"tools": [], "stop": []}),
        ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": TOOL}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": []}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        ),
        ("/v1/responses", {"input": "a", "background": False, "top_logprobs": 0}),
        ("/v1/responses", {"input": "a", "stop": [], "include": [], "text": {}}),
        ("/detokenize", {"tokens": []}),
    ],
    ids=str,
)
def test_what_is_taken_is_allowed(api: Any, path: str, body: dict[str, Any]):
    """Bodies at the edge, which are seldom generated."""
    case = api[path]["POST"].Case(body=body, media_type="application/json")
    assert case.call_and_validate(checks=CHECKS).status_code == 200
    operation = api.raw_schema["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    whole = schema | {"components": api.raw_schema["components"]}
    assert jsonschema_rs.is_valid(whole, body)


def test_every_path_is_tried(api: Any):
    """A new path belongs into the list above."""
    tried = test_every_answer_is_as_documented.pytestmark[0].args[1]  # pyright: ignore[reportFunctionMemberAccess]  (pytest's)
    assert {path for _, path, _ in tried} == set(api.raw_schema["paths"])
