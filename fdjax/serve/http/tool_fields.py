"""`tools`, `tool_choice` and the calls of earlier turns, in OpenAI's words."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import PlainValidator, WithJsonSchema

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.generate.structured import check_depth
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import few, field_of, text_of
from fdjax.serve.turns.tool import Tool

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MODES = ("none", "auto", "required")

type Choice = Literal["none", "auto", "required"] | "NamedTool"


class NamedTool(str):
    """The name of the tool that `tool_choice` wants to be called."""


def _tools(value: object) -> list[Tool] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ApiError("tools must be a list of tools", param="tools")
    tools = [
        _tool(f"tools[{place}]", one)
        for place, one in enumerate(few("tools", cast("list[Any]", value)))
    ]
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise ApiError(f"tools has {tool.name} twice; rename one", param="tools")
        names.add(tool.name)
    return tools


def _tool(place: str, value: object) -> Tool:
    fields = object_of(place, value, ("type", "function"))
    if fields.get("type") != "function":
        raise _wrong(f"{place}.type", fields.get("type"), "only 'function' is served")
    place = f"{place}.function"
    known = ("name", "description", "parameters", "strict")
    function = object_of(place, fields.get("function"), known)
    if not isinstance(function.get("strict", False), bool):
        raise _wrong(f"{place}.strict", function["strict"], "give true or false")
    parameters = _parameters(f"{place}.parameters", function.get("parameters"))
    described: dict[str, Any] = {
        "name": _name(f"{place}.name", function.get("name")),
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    if "description" in function:
        text = text_of(f"{place}.description", function["description"])
        described["description"] = text
    return Tool(
        name=described["name"],
        parameters=parameters,
        described={"type": "function", "function": described},
        strict=function.get("strict", False),
    )


def _parameters(place: str, value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(place, value, "give a JSON schema of an object")
    schema = cast("dict[str, Any]", value)
    if schema.get("type", "object") != "object":
        raise _wrong(f"{place}.type", schema["type"], "arguments are an object")
    try:
        check_depth(place, schema)
    except RequestError as error:
        raise ApiError(str(error), param="tools") from None
    try:
        text_of(place, json.dumps(schema, ensure_ascii=False, allow_nan=False))
    except ValueError:  # JSON has neither, and nor has an answer
        raise _wrong(place, value, "leave out NaN and infinities") from None
    return schema


def _name(place: str, value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _wrong(place, value, "give 1 to 128 letters, digits, '_', '-' or '.'")
    return value


def _choice(value: object) -> Choice | None:
    if value is None or value in _MODES:
        return cast("Choice | None", value)
    if not isinstance(value, dict):
        modes = ", ".join(map(repr, _MODES))
        raise _wrong("tool_choice", value, f"give {modes}, or name a function")
    fields = object_of("tool_choice", cast("object", value), ("type", "function"))
    if fields.get("type") != "function":
        wrong = fields.get("type")
        raise _wrong("tool_choice.type", wrong, "only 'function' is served")
    function = object_of("tool_choice.function", fields.get("function"), ("name",))
    return NamedTool(_name("tool_choice.function.name", function.get("name")))


def _calls(value: object) -> list[dict[str, Any]] | None:
    """Calls of an earlier turn, as templates know them."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ApiError("messages: tool_calls must be a list", param="messages")
    calls = enumerate(cast("list[object]", value))
    return [_call(f"messages: tool_calls[{place}]", one) for place, one in calls]


def _call(place: str, value: object) -> dict[str, Any]:
    fields = object_of(place, value, ("id", "type", "function", "index"))
    if fields.get("type", "function") != "function":
        wrong = fields["type"]
        raise _wrong(f"{place}.type", wrong, "only 'function' is served")
    known = ("name", "arguments")
    function = object_of(f"{place}.function", fields.get("function"), known)
    call: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": text_of(f"{place}.function.name", function.get("name")),
            "arguments": text_of(
                f"{place}.function.arguments", function.get("arguments")
            ),
        },
    }
    if fields.get("id") is not None:
        call["id"] = text_of(f"{place}.id", fields["id"])
    return call


def with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call of an earlier turn, with the object that its arguments are.

    Templates write it as JSON; what is none stays as it was.

    Args:
        call: as a message has it; whoever calls this has looked how long it is.
    """
    function = call["function"]
    arguments = _loaded(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}


def _loaded(written: str) -> dict[str, Any] | str:
    try:
        loaded = json.loads(written or "{}", parse_constant=str)
        check_depth("arguments", loaded)
    except (ValueError, RecursionError, RequestError):
        return written
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else written


def object_of(place: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    """An object with known fields alone; those that are `null` are left out.

    Raises:
        ApiError: it is none, or has another field.
    """
    if not isinstance(value, Mapping):
        raise _wrong(place, value, f"give an object with {', '.join(known)}")
    fields = cast("Mapping[str, Any]", value)
    given = {name: one for name, one in fields.items() if one is not None}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise _wrong(
            f"{place}.{unknown[:100]}", fields[unknown], "it is not known; leave it out"
        )
    return given


def _wrong(place: str, value: object, remedy: str) -> ApiError:
    return ApiError(f"{place} is {shown(value)}; {remedy}", param=field_of(place))


# What is `null` is left out.
_NULL: dict[str, Any] = {"type": "null"}
_FUNCTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
    "additionalProperties": _NULL,
}
_CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "type": {"enum": ["function", None]},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
            "required": ["name", "arguments"],
            "additionalProperties": _NULL,
        },
    },
    "required": ["function"],
}

Tools = Annotated[
    list[Tool] | None,
    PlainValidator(_tools),
    WithJsonSchema(
        {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {"type": {"const": "function"}, "function": _FUNCTION},
                "required": ["type", "function"],
                "additionalProperties": _NULL,
            },
        }
    ),
]
ToolChoice = Annotated[
    Any,
    PlainValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [*_MODES, None]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": _FUNCTION["properties"]["name"]},
                            "required": ["name"],
                            "additionalProperties": _NULL,
                        },
                    },
                    "required": ["type", "function"],
                    "additionalProperties": _NULL,
                },
            ]
        }
    ),
]
Calls = Annotated[
    list[dict[str, Any]] | None,
    PlainValidator(_calls),
    WithJsonSchema({"type": ["array", "null"], "items": _CALL}),
]
