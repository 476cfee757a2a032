"""The form of an answer, in OpenAI's words (`response_format`) and in vLLM's."""

from typing import Annotated, Any, cast

from pydantic import PlainValidator, WithJsonSchema

from fdjax.serve.http.errors import ApiError

_KINDS = ("json", "json_object", "regex", "grammar", "choice")
_FORMATS = ("text", "json_object", "json_schema", "regex", "grammar")


def _format(value: object) -> dict[str, Any] | None:
    """Arguments of `StructuredOutputs`; `None` for any text."""
    if value is None:
        return None
    name = "response_format"
    fields = _object(name, value, {"type", "json_schema", "regex", "grammar"})
    kind = fields.get("type")
    if kind not in _FORMATS:
        raise ApiError(f"{name}.type must be one of {', '.join(_FORMATS)}", param=name)
    wanted = {"type"} if kind in ("text", "json_object") else {"type", kind}
    if {*fields} != wanted:
        raise ApiError(
            f"{name} of type {kind} must have {' and '.join(sorted(wanted))} alone",
            param=name,
        )
    match kind:
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            return {"json": _schema(name, fields["json_schema"])}
        case _:
            return {kind: fields[kind]}


def _schema(name: str, value: object) -> Any:
    known = {"name", "description", "schema", "strict"}
    fields = _object(f"{name}.json_schema", value, known)
    if not isinstance(fields.get("schema"), dict | bool):
        raise ApiError(f"{name}.json_schema.schema must be a JSON schema", param=name)
    return fields["schema"]


def _structured(value: object) -> dict[str, Any] | None:
    """The same; all but the names is left to `StructuredOutputs`."""
    return None if value is None else _object("structured_outputs", value, {*_KINDS})


def _object(place: str, value: object, known: set[str]) -> dict[str, Any]:
    param = place.partition(".")[0]
    if not isinstance(value, dict):
        raise ApiError(f"{place} must be an object", param=param)
    fields = cast("dict[str, Any]", value)
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise ApiError(
            f"{place} has {unknown[:100]}; it may have {', '.join(sorted(known))}",
            param=param,
        )
    return fields


_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_NO_TEXT: dict[str, Any] = {"type": ["string", "null"], "minLength": 1}

ResponseFormat = Annotated[
    dict[str, Any] | None,
    PlainValidator(_format),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "properties": {
                "type": {"enum": list(_FORMATS)},
                "json_schema": {
                    "type": "object",
                    "properties": {"schema": {"type": ["object", "boolean"]}},
                    "required": ["schema"],
                },
                "regex": _TEXT,
                "grammar": _TEXT,
            },
            "required": ["type"],
        }
    ),
]
Structured = Annotated[
    dict[str, Any] | None,
    PlainValidator(_structured),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "properties": {
                "json": {"type": ["object", "boolean", "string", "null"]},
                "json_object": {"type": ["boolean", "null"]},
                "regex": _NO_TEXT,
                "grammar": _NO_TEXT,
                "choice": {"type": ["array", "null"], "items": _TEXT, "minItems": 1},
            },
            "additionalProperties": False,
        }
    ),
]
