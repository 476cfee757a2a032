"""Types of fields whose entries are checked here: the first wrong one is told.

Pydantic would make an error of every wrong entry, and of each in every alternative: a
body of some megabytes could ask for millions.
"""

import re
from functools import partial
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainValidator,
    SkipValidation,
    ValidationInfo,
    WithJsonSchema,
)

from fdjax.generate.beam_fields import EarlyStopping
from fdjax.generate.checks import shown
from fdjax.generate.fields import MAX_BIASED
from fdjax.serve.http.errors import ApiError, not_json
from fdjax.serve.prompts import PlainPrompt

MAX_ENTRIES = 4096
"""Of prompts, messages, their parts and calls, tools, and stop strings. Where limits of
a server are higher, this one still holds: to walk a million entries would hold up all
others."""


def text_of(place: str, value: object) -> str:
    """A text that can be encoded.

    Args:
        place: where it stands, beginning with the field's name.
        value: what stands there.

    Raises:
        ApiError: it is none; JSON can bring in lone surrogates.
    """
    param = field_of(place)
    if not isinstance(value, str):
        raise ApiError(f"{place} must be a text", param=param)
    try:
        return _whole(value)
    except UnicodeError as error:
        raise not_json(str(error), param=param) from None


def field_of(place: str) -> str:
    """The field that a place such as `tools[0].type` is in."""
    return re.split(r"\W", place, maxsplit=1)[0]


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnicodeError(
            f"it has half a surrogate pair at {error.start}; send whole characters"
        ) from None
    return text


def _prompts(name: str, value: object) -> list[PlainPrompt]:
    if isinstance(value, str):
        return [text_of(name, value)]
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    if entries and set(map(type, entries)) == {int}:
        return [entries]
    if not entries:
        raise ApiError(
            f"{name} must be a text or token ids, or a list of some, not empty",
            param=name,
        )
    return [
        text_of(name, entry) if isinstance(entry, str) else _ids(name, entry)
        for entry in few(name, entries)
    ]


def few(name: str, entries: list[Any]) -> list[Any]:
    """Entries that may be walked.

    Raises:
        ApiError: there are too many.
    """
    if len(entries) > MAX_ENTRIES:
        raise ApiError(
            f"{name} has {len(entries)} entries; use at most {MAX_ENTRIES}", param=name
        )
    return entries


def few_turns(value: object) -> object:
    """Messages that may be walked, and the calls in them.

    Raises:
        ApiError: there are too many.
    """
    if not isinstance(value, list):
        return value
    count = 0
    for turn in few("messages", cast("list[Any]", value)):
        calls = (
            cast("dict[str, Any]", turn).get("tool_calls")
            if isinstance(turn, dict)
            else None
        )
        count += len(cast("list[Any]", calls)) if isinstance(calls, list) else 0
    if count > MAX_ENTRIES:
        raise ApiError(
            f"messages has {count} tool_calls; use at most {MAX_ENTRIES}",
            param="messages",
        )
    return value


def _few_notes(value: object) -> object:
    if isinstance(value, dict):
        few("metadata", cast("Any", value))
    return value


def _ids(name: str, value: object) -> list[int]:
    entries = cast("list[Any]", value if isinstance(value, list) else [None])
    # A loop of Python's would hold up all others for 0.1 s a million.
    if not set(map(type, entries)) <= {int}:
        raise ApiError(f"{name} must have whole numbers as token ids", param=name)
    return entries


def _token_ids(value: object, info: ValidationInfo) -> list[int] | None:
    return None if value is None else _ids(str(info.field_name), value)


def _bad_words(value: object) -> list[str] | None:
    """Their number and length are left to `SamplingParams`."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ApiError("bad_words must be a list of texts", param="bad_words")
    return [
        text_of("bad_words", word)
        for word in few("bad_words", cast("list[Any]", value))
    ]


def _bias(value: object) -> dict[int, Any] | None:
    """JSON's names are texts; the numbers are left to `SamplingParams`."""
    if value is None:
        return None
    entries = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": None}
    if len(entries) > MAX_BIASED:
        raise ApiError(
            f"logit_bias has {len(entries)} entries; use at most {MAX_BIASED}",
            param="logit_bias",
        )
    if not all(key.isascii() and key.isdigit() and len(key) < 11 for key in entries):
        raise ApiError(
            "logit_bias must have token ids as names, and numbers as values",
            param="logit_bias",
        )
    return {int(key): bias for key, bias in entries.items()}


def _stops(value: object) -> list[str] | None:
    """One or several; their number and length are left to `SamplingParams`."""
    if value is None:
        return None
    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [text_of("stop", entry) for entry in few("stop", entries)]


def _content(value: object) -> str:
    """A text, or OpenAI's list of parts, of which only texts are served."""
    if not isinstance(value, list):
        return text_of("messages", value)
    texts: list[str] = []
    for part in few("messages", cast("list[Any]", value)):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        if {*fields} != {"type", "text"} or fields["type"] != "text":
            raise ApiError(
                "messages may have parts of type 'text' only", param="messages"
            )
        texts.append(text_of("messages", fields["text"]))
    return "".join(texts)


def _tokens(value: object) -> list[int]:
    return _ids("tokens", value)


def _best_of(value: object) -> object:
    if value is not None and (isinstance(value, bool) or value != 1):
        raise ApiError(
            f"best_of is {shown(value)}; use 1, or leave it out: a search finds the n "
            "best of more, with use_beam_search and beam_width",
            param="best_of",
        )
    return value


def _said(value: object, *, is_boolean: bool) -> object:
    """To Python, 0 and `false` are equal, and to pydantic's literals."""
    if isinstance(value, bool) != is_boolean:
        raise ValueError(f"give {'true or false' if is_boolean else 'a number'}")
    return value


_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_SOME: dict[str, Any] = {"minItems": 1}
_PART: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}

Text = Annotated[str, AfterValidator(_whole)]
Notes = Annotated[dict[Text, Text] | None, BeforeValidator(_few_notes)]
_SOME_PROMPTS = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            _TEXTS | _SOME,
            _IDS | _SOME,
            {"type": "array", "items": _IDS | _SOME} | _SOME,
        ]
    }
)
Prompts = Annotated[
    list[PlainPrompt], PlainValidator(partial(_prompts, "prompt")), _SOME_PROMPTS
]
Inputs = Annotated[
    list[PlainPrompt], PlainValidator(partial(_prompts, "input")), _SOME_PROMPTS
]
Content = Annotated[
    str,
    PlainValidator(_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}),
]
Stops = Annotated[
    list[str] | None,
    PlainValidator(_stops),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, {"type": "null"}]}),
]
BadWords = Annotated[
    list[str] | None,
    PlainValidator(_bad_words),
    WithJsonSchema({"type": ["array", "null"], "items": {"type": "string"}}),
]
TokenIds = Annotated[
    list[int] | None,
    PlainValidator(_token_ids),
    WithJsonSchema({"type": ["array", "null"], "items": {"type": "integer"}}),
]
Bias = Annotated[
    dict[int, Any] | None,
    PlainValidator(_bias),
    WithJsonSchema(
        {"type": ["object", "null"], "additionalProperties": {"type": "number"}}
    ),
]
Tokens = Annotated[list[int], PlainValidator(_tokens), WithJsonSchema(_IDS)]
No = Annotated[Literal[False], BeforeValidator(partial(_said, is_boolean=True))]
Zero = Annotated[Literal[0], BeforeValidator(partial(_said, is_boolean=False))]
# Of a union pydantic tells the first type alone; `BeamSearch` tells all that it may be.
EarlyStop = Annotated[
    EarlyStopping | None,
    SkipValidation,
    WithJsonSchema({"enum": [True, False, "never", None]}),
]
BestOf = Annotated[Literal[1] | None, BeforeValidator(_best_of)]
