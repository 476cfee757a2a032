"""The body of `/v1/responses`, and the chat that it asks to be continued."""

import contextlib
from collections.abc import Generator
from typing import Annotated, Any, Literal, cast

from pydantic import (
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import Bias, No, Notes, Stops, Text, Zero
from fdjax.serve.http.response_input import ResponseInput
from fdjax.serve.http.schemas import AskingBody, ChatBody, Effort
from fdjax.serve.http.strict_body import Body
from fdjax.serve.http.tool_fields import object_of

_STATEFUL = ("previous_response_id", "conversation", "prompt")
_ALIKE = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "metadata",
    "service_tier",
)
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "structured_outputs": "text",
    "reasoning_effort": "reasoning",
}


class Reasoning(Body):
    """How much a model reasons; it comes whole, whatever summary was asked for."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


def _format(value: object) -> dict[str, Any]:
    """`text`, as `response_format` of a chat."""
    if value is None:
        return {"type": "text"}
    text = object_of("text", value, ("format", "verbosity"))
    if text.get("verbosity") not in (None, "medium"):
        raise ApiError(
            "text.verbosity is not served; say in the instructions how long a text "
            "should be",
            param="text",
        )
    form = text.get("format")
    if form is None:
        return {"type": "text"}
    known = ("type", "name", "description", "schema", "strict")
    fields = object_of("text.format", form, known)
    if fields.get("type") != "json_schema":
        return fields
    return {
        "type": "json_schema",
        "json_schema": {name: fields[name] for name in fields if name != "type"},
    }


def _tools(value: object) -> list[Any] | None:
    """Tools of a chat: their fields stand one level deeper."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ApiError("tools must be a list of tools", param="tools")
    return [_tool(one) for one in cast("list[Any]", value)]


def _tool(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("type") != "function":  # pyright: ignore[reportUnknownMemberType]  (JSON)
        return value  # which is refused as a chat's
    fields = cast("dict[str, Any]", value)
    return {
        "type": "function",
        "function": {name: given for name, given in fields.items() if name != "type"},
    }


def _choice(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    return _tool(value)


_OBJECT: dict[str, Any] = {"type": ["object", "null"]}


class ResponsesBody(AskingBody):
    """A request to `/v1/responses`."""

    input: ResponseInput
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Stops = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Bias = None
    tools: Annotated[
        Any, PlainValidator(_tools), WithJsonSchema({"type": ["array", "null"]})
    ] = None
    tool_choice: Annotated[
        Any,
        PlainValidator(_choice),
        WithJsonSchema({"type": ["string", "object", "null"]}),
    ] = None
    parallel_tool_calls: bool | None = None
    text: Annotated[Any, PlainValidator(_format), WithJsonSchema(_OBJECT)] = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: Notes = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    # Agents ask for it where nothing is stored; the reasoning is there in plain text.
    include: (
        Annotated[
            list[Literal["reasoning.encrypted_content"]],
            Field(max_length=8, fail_fast=True),
        ]
        | None
    ) = None
    top_logprobs: Zero | None = None
    store: bool | None = None
    background: No | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _needs_no_state(cls, fields: Any) -> Any:
        """Refuses by name what would need responses to be stored."""
        if isinstance(fields, dict):
            _refuse_state(cast("dict[str, Any]", fields))
        return fields

    @property
    def shown_tools(self) -> list[Any]:
        """As they came."""
        return [
            {"type": "function", "strict": False} | tool["function"]
            for tool in self.tools or ()
        ]

    @property
    def shown_choice(self) -> Any:
        """As it came."""
        choice = self.tool_choice or "auto"
        if isinstance(choice, dict):
            return {"type": "function"} | cast("dict[str, Any]", choice)["function"]
        return choice

    @property
    def shown_format(self) -> dict[str, Any]:
        """As it came."""
        form: dict[str, Any] = self.text or {"type": "text"}
        return {"type": form["type"]} | form.get("json_schema", {})

    def chat(self) -> ChatBody:
        """The chat that the next turn is asked of.

        Raises:
            ApiError: a field is wrong.
        """
        given = {name: getattr(self, name) for name in _ALIKE}
        messages = list(self.input)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        given |= {
            "messages": messages,
            "max_completion_tokens": self.max_output_tokens,
            "response_format": self.text,
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
        }
        if self.logit_bias is not None:
            given["logit_bias"] = {str(key): v for key, v in self.logit_bias.items()}
        try:
            return ChatBody.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ApiError(
                f"{place}: {first['msg']}", param=str(first["loc"][0])
            ) from None


@contextlib.contextmanager
def in_these_words() -> Generator[None]:
    """Lets errors of a chat name the field that it came from here."""
    try:
        yield
    except ApiError as error:
        raise error.about(_NAMES.get(error.param or "", error.param)) from None


def _refuse_state(given: dict[str, Any]) -> None:
    for name in _STATEFUL:
        if given.get(name) is not None:
            raise ApiError(
                f"{name} is not supported: nothing is stored here; send all earlier "
                "items in input",
                param=name,
            )
    if given.get("background"):
        raise ApiError(
            "background is not supported: nothing is stored here; set it to false, and "
            "stream",
            param="background",
        )
