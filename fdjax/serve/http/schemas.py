"""Bodies of requests, read strictly: no field is guessed, none is skipped."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.http.beams import BEAM_FIELDS, UNLIKE_BEAMS, beam_params, refuse_beams
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import (
    Bias,
    Content,
    Prompts,
    StopIds,
    Stops,
    Text,
    Tokens,
)
from fdjax.serve.http.forms import ResponseFormat, Structured
from fdjax.serve.http.tool_fields import Calls, ToolChoice, Tools

_INT32 = 2**31
type Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
_NAMED_ALIKE = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
)


class Body(BaseModel):
    """What all bodies share; `null` is as good as leaving a field out."""

    # `_knows_all` forbids what is unknown.
    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_all(cls, fields: Any) -> Any:
        """Refuses the first unknown field: pydantic would list a million of them."""
        if isinstance(fields, dict):
            for name in cast("dict[Any, Any]", fields):
                if str(name).startswith("guided_"):
                    raise ApiError(
                        f"{name[:100]} is not supported; use structured_outputs, as in "
                        "vLLM since 0.12",
                        param=name[:100],
                    )
                if name not in cls.model_fields:
                    raise ApiError(
                        f"{str(name)[:100]} is not supported; leave it out",
                        param=str(name)[:100],
                    )
        return fields


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


class SamplingBody(Body):
    """What completions and chats share."""

    model: Text | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = None
    metadata: dict[Text, Text] | None = None
    service_tier: Literal["auto", "default"] | None = None
    priority: Annotated[int, Field(ge=-_INT32, lt=_INT32)] | None = None
    cache_salt: Annotated[Text, Field(max_length=256)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Bias = None
    seed: int | None = None
    stop: Stops = None
    stop_token_ids: StopIds = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    response_format: ResponseFormat = None
    structured_outputs: Structured = None

    @model_validator(mode="after")
    def _usage_only_in_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options is for streams; set stream to true, or leave it out",
                param="stream_options",
            )
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.response_format is not None and self.structured_outputs is not None:
            raise ApiError(
                "response_format and structured_outputs mean the same; give one",
                param="response_format",
            )
        return self

    @property
    def renamed(self) -> dict[str, str]:
        """Fields of `SamplingParams` that the request has another name for."""
        if self.response_format is None:
            return {}
        return {"structured_outputs": "response_format"}

    def sampling(self, defaults: dict[str, Any]) -> SamplingParams | BeamSearchParams:
        """The parameters, in the engine's words.

        Raises:
            ApiError: fields of beam search and of sampling are mixed.
            RequestError: a value is out of range.
        """
        given = {name: getattr(self, name) for name in _NAMED_ALIKE}
        given = {name: value for name, value in given.items() if value is not None}
        form = self.response_format or self.structured_outputs
        if form is not None:
            given["structured_outputs"] = StructuredOutputs(**form)
        of_beams = {name: getattr(self, name) for name in BEAM_FIELDS}
        of_beams = {
            name: value for name, value in of_beams.items() if value is not None
        }
        if self.use_beam_search:
            asked = {name: defaults.get(name) for name in UNLIKE_BEAMS}
            asked = {name: value for name, value in asked.items() if value is not None}
            return beam_params(asked | given | of_beams, defaults)
        refuse_beams(of_beams)
        return SamplingParams(**defaults | given)


class CompletionBody(SamplingBody):
    """A request to `/v1/completions`."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None

    @model_validator(mode="after")
    def _one_sample_has_the_prompts_logprobs(self) -> Self:
        if self.echo and self.logprobs is not None and (self.n or 1) > 1:
            raise ApiError(
                f"n is {self.n}, but with echo and logprobs, a prompt's are told once; "
                "use 1, or leave out echo or logprobs",
                param="n",
            )
        return self


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: Calls = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _suits_its_role(self) -> Self:
        for field, role in (
            ("tool_calls", "assistant"),
            ("reasoning", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if getattr(self, field) is not None and self.role != role:
                raise ApiError(
                    f"messages: {field} is for the role {role}, not {self.role}",
                    param="messages",
                )
        if self.content is None and not self.tool_calls:
            raise ApiError(
                f"messages: content is missing, of the role {self.role}",
                param="messages",
            )
        return self

    def plain(self) -> dict[str, Any]:
        """The words that chat templates know."""
        role = "system" if self.role == "developer" else self.role
        reasoning = self.reasoning or self.reasoning_content
        more = {
            "name": self.name,
            # Templates have either word.
            "reasoning": reasoning,
            "reasoning_content": reasoning,
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
        }
        given = {name: value for name, value in more.items() if value is not None}
        return {"role": role, "content": self.content or "", **given}


class ChatBody(SamplingBody):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(
                "top_logprobs needs logprobs: set it to true", param="top_logprobs"
            )
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(
                "max_tokens and max_completion_tokens mean the same; give one",
                param="max_tokens",
            )
        return self

    @property
    def template_options(self) -> dict[str, Any]:
        """What the chat template may look at, beside messages and tools."""
        options: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            options["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            options["enable_thinking"] = False
        return options | (self.chat_template_kwargs or {})

    @property
    def renamed(self) -> dict[str, str]:
        """See `SamplingBody.renamed`."""
        renamed = {"logprobs": "top_logprobs"} | super().renamed
        if self.max_completion_tokens is not None:
            renamed["max_tokens"] = "max_completion_tokens"
        return renamed


class TokenizeBody(Body):
    """A request to `/tokenize`: a text, or a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = (
        None
    )
    tools: Tools = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    """A request to `/detokenize`."""

    model: Text | None = None
    tokens: Tokens
