"""Values of JSON, counted before it is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.serve.http import json_size
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.json_size import refuse_many
from tests.support.http_server import LIMITS, served

TEXTS = st.text(st.sampled_from('ab",[{\\\n\u00e9'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers(-9, 99) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=40,
)


def counted(value: Any) -> tuple[int, int]:
    """What is nested, and a value more for each that stands behind a comma."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = list(value.values()) if isinstance(value, dict) else value
    nested = 1 + (len(inner) if isinstance(value, dict) else 0)
    values = nested + max(len(inner) - 1, 0)
    for one in inner:
        more = counted(one)
        nested, values = nested + more[0], values + more[1]
    return nested, values


@given(VALUES, st.booleans())
def test_what_texts_say_does_not_count(value: Any, ascii_only: bool):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    found = json_size._outside_texts(body)
    assert found == counted(value)
    assert all(a <= b for a, b in zip(found, json_size._at_most(body), strict=True))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"[],", "lists, objects and entries of them; use at most 131072"),
        (b'{"":0},', "lists, objects"),
        (b"[[[[]]]],", "lists, objects"),
        (b'"":1,', "lists, objects"),
        (b"1,", "values; use at most 1048576"),
        (b'"",', "values"),
    ],
)
def test_too_many_are_refused_unread(value: bytes, problem: str):
    body = b'{"prompt": [' + value * (2**22 // len(value)) + b"0"
    with pytest.raises(ApiError, match=problem):
        refuse_many(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"5," * 2**20,
        b'{"prompt": "' + b"[:,{" * 2**20 + b'"}',
        b'{"prompt": "' + rb"\",\\" * 2**20 + b'"}',
        b"[" * 2**17,
    ],
    ids=["ids", "text", "escapes", "nested"],
)
def test_as_many_as_may_be_are_not(body: bytes):
    refuse_many(body.replace(b"5,", b"5 ", 3))


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_server_says_so(path: str):
    count = LIMITS.body_bytes // 4
    body = b'{"stop": [' + b"[]," * count + b"0]}"
    with served() as server:
        async with server.client as client:
            headers = {"content-type": "application/json"}
            answer = await client.post(path, content=body, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "too_many_values", error
    assert error["message"].startswith(f"the body has {count + 3} lists, objects")
