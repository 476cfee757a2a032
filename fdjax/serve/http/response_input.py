"""`input` of `/v1/responses`: messages, calls and what came of them, as a chat."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import PlainValidator, WithJsonSchema

from fdjax.generate.checks import shown
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import few, text_of

_ROLES = ("system", "developer", "user", "assistant")
_TEXTS = ("input_text", "output_text", "text")
# What items of earlier responses have besides; it says nothing to a model.
_IGNORED = {"id", "status", "type", "phase", "annotations", "logprobs"}

type Message = dict[str, Any]


def _input(value: object) -> list[Message]:
    """Messages in the words of chats."""
    if isinstance(value, str):
        return [{"role": "user", "content": text_of("input", value)}]
    if not isinstance(value, list) or not value:
        raise _wrong("input", value, "give a text, or a list of items")
    messages: list[Message] = []
    for place, item in enumerate(few("input", cast("list[Any]", value))):
        _add(messages, f"input[{place}]", item)
    if messages[-1].get("content") is None and "tool_calls" not in messages[-1]:
        messages[-1]["content"] = ""  # reasoning that nothing followed
    return messages


def _add(messages: list[Message], place: str, item: object) -> None:
    if not isinstance(item, Mapping):
        raise _wrong(place, item, "give an object")
    fields = cast("Mapping[str, Any]", item)
    kind = fields.get("type", "message")
    match kind:
        case "message":
            _add_message(messages, place, fields)
        case "function_call":
            _add_call(messages, place, fields)
        case "function_call_output":
            _known(place, fields, {"call_id", "output"})
            call = text_of(f"{place}.call_id", fields.get("call_id"))
            content = _text(f"{place}.output", fields.get("output"))
            messages.append({"role": "tool", "tool_call_id": call, "content": content})
        case "reasoning":
            _known(place, fields, {"content", "summary", "encrypted_content"})
            parts = fields.get("content") or []
            text = _text(f"{place}.content", parts, ("reasoning_text",))
            messages.append({"role": "assistant", "reasoning": text})
        case _:
            raise _wrong(
                f"{place}.type",
                kind,
                "give message, function_call, function_call_output or reasoning; "
                "nothing is stored that could be referred to",
            )


def _add_message(
    messages: list[Message], place: str, fields: Mapping[str, Any]
) -> None:
    _known(place, fields, {"role", "content"})
    role = fields.get("role")
    if role not in _ROLES:
        raise _wrong(f"{place}.role", role, f"give {', '.join(_ROLES)}")
    content = _text(f"{place}.content", fields.get("content"))
    if role == "assistant" and _is_open(messages):
        messages[-1]["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _add_call(messages: list[Message], place: str, fields: Mapping[str, Any]) -> None:
    _known(place, fields, {"call_id", "name", "arguments"})
    call = {
        "id": text_of(f"{place}.call_id", fields.get("call_id")),
        "type": "function",
        "function": {
            "name": text_of(f"{place}.name", fields.get("name")),
            "arguments": text_of(f"{place}.arguments", fields.get("arguments")),
        },
    }
    # Calls of one turn, and what was said before them, are one message of a chat.
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    messages[-1].setdefault("tool_calls", []).append(call)


def _is_open(messages: Sequence[Message]) -> bool:
    """The last one is an assistant's that has its reasoning, and nothing else yet."""
    return bool(messages) and {*messages[-1]} == {"role", "reasoning"}


def _known(place: str, fields: Mapping[str, Any], known: set[str]) -> None:
    for name in fields:
        if fields[name] is not None and name not in known | _IGNORED:
            raise _wrong(
                f"{place}.{name[:100]}", fields[name], "it is not known; leave it out"
            )


def _text(place: str, value: object, kinds: Sequence[str] = _TEXTS) -> str:
    """A text, or the texts of parts."""
    if isinstance(value, str):
        return text_of(place, value)
    if not isinstance(value, list):
        raise _wrong(place, value, "give a text, or a list of parts")
    texts: list[str] = []
    for part in few("input", cast("list[Any]", value)):
        kind = part.get("type") if isinstance(part, dict) else part  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (JSON)
        if kind not in kinds:
            raise _wrong(f"{place} has a part that", kind, f"give {kinds[0]} only")
        texts.append(text_of(f"{place}.text", cast("dict[str, Any]", part).get("text")))
    return "".join(texts)


def _wrong(place: str, value: object, remedy: str) -> ApiError:
    return ApiError(f"{place} is {shown(value)}; {remedy}", param="input")


ResponseInput = Annotated[
    list[Message],
    PlainValidator(_input),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object"}, "minItems": 1},
            ]
        }
    ),
]
