"""Forms are checked before anything is compiled, and name what is wrong."""

import json
from typing import Any

import pytest

from fdjax import RequestError, SamplingParams, StructuredOutputs
from fdjax.generate.structured import MAX_BYTES, MAX_CHOICES, MAX_DEPTH

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["dict", "text"])
def test_a_schema_becomes_a_text(schema: Any):
    form = StructuredOutputs(json=schema)
    assert json.loads(str(form.json)) == SCHEMA
    assert hash(form) == hash(StructuredOutputs(json=SCHEMA))
    assert hash(SamplingParams(structured_outputs=form))


def test_choices_become_a_tuple():
    assert StructuredOutputs(choice=["a", "b"]).choice == ("a", "b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has nothing; give one of json, json_object, regex, grammar, choice"),
        ({"regex": "a", "json": SCHEMA}, "has json and regex; give one"),
        ({"json_object": False}, "has nothing"),
        ({"json_object": 1}, "json_object is 1; use True or False"),
        ({"json": 5}, "json is 5; give a JSON schema"),
        ({"json": "[]"}, r"json is \[\]; give a JSON schema"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": "[" * 20_000}, "json is not JSON"),
        ({"json": {"minimum": float("nan")}}, "json is not JSON"),
        ({"json": {"enum": [{1}]}}, "json is not JSON"),
        ({"json": nested(MAX_DEPTH + 1)}, f"json has more than {MAX_DEPTH} levels"),
        ({"json": {"enum": ["a" * MAX_BYTES]}}, f"bytes; use at most {MAX_BYTES}"),
        ({"regex": "a" * (MAX_BYTES + 1)}, f"has {MAX_BYTES + 1} bytes"),
        ({"regex": ""}, "regex is ''; give a text that is not empty"),
        ({"regex": 1}, "regex is 1; give a text"),
        ({"regex": "\ud800"}, "half a surrogate pair"),
        ({"grammar": ["a"]}, "grammar is"),
        ({"choice": []}, "choice is .*; give a list of texts"),
        ({"choice": "ab"}, "choice is 'ab'; give a list of texts"),
        ({"choice": ["a", 1]}, "choice is 1; give a text"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, f"has {MAX_CHOICES + 1} texts"),
        ({"choice": ["a" * 100] * 400}, "choice has 40000 bytes"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=rf"^structured_outputs.*{message}"):
        StructuredOutputs(**fields)


def test_limits_are_within():
    StructuredOutputs(json=nested(MAX_DEPTH))
    StructuredOutputs(regex="a" * MAX_BYTES)
    StructuredOutputs(choice=["a"] * MAX_CHOICES)


def test_parameters_take_nothing_else():
    with pytest.raises(RequestError, match="structured_outputs is 'a'"):
        SamplingParams(structured_outputs="a")  # pyright: ignore[reportArgumentType]
