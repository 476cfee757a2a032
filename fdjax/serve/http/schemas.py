"""Bodies of completions, chats and tokens: what is wrong in one is named."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.chat_template import ChatEnd, chat_end
from fdjax.serve.http.beams import beam_params, given_fields, refuse_beams
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import (
    BadWords,
    BestOf,
    Bias,
    EarlyStop,
    Notes,
    Prompts,
    Stops,
    Text,
    TokenIds,
)
from fdjax.serve.http.forms import ResponseFormat, Structured
from fdjax.serve.http.messages import Messages
from fdjax.serve.http.strict_body import Body
from fdjax.serve.http.tool_fields import ToolChoice, Tools

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
    "allowed_token_ids",
    "bad_words",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
)


class StreamOptions(Body):
    """OpenAI's `stream_options`, vLLM's, and the best so far of a beam search.

    Nothing is obfuscated, whatever was asked.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    include_best: bool | None = None


class AskingBody(Body):
    """What all share that ask for work of the engine."""

    model: Text | None = None
    user: Text | None = None
    priority: Annotated[int, Field(ge=-_INT32, lt=_INT32)] | None = None
    cache_salt: Annotated[Text, Field(max_length=256)] | None = None


class SamplingBody(AskingBody):
    """What completions and chats share.

    Nothing is stored, and prefixes are found without keys, whatever was asked.
    """

    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Notes = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Bias = None
    allowed_token_ids: TokenIds = None
    bad_words: BadWords = None
    seed: int | None = None
    stop: Stops = None
    stop_token_ids: TokenIds = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStop = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    response_format: ResponseFormat = None
    structured_outputs: Structured = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None

    @model_validator(mode="after")
    def _usage_only_in_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options is for streams; set stream to true, or leave it out",
                param="stream_options",
            )
        return self

    @model_validator(mode="after")
    def _whole_answers_have_prompt_logprobs(self) -> Self:
        if self.prompt_logprobs is not None and self.stream:
            raise ApiError(
                f"prompt_logprobs is {self.prompt_logprobs}, but streams do not have "
                "them; set stream to false, or leave out prompt_logprobs",
                param="prompt_logprobs",
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
        renamed: dict[str, str] = {}
        if self.response_format is not None:
            renamed["structured_outputs"] = "response_format"
        if self.use_beam_search and self.beam_width is None:
            renamed["beam_width"] = "n"
        return renamed

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
        best = bool(self.stream_options and self.stream_options.include_best)
        of_beams = given_fields(self)
        if self.use_beam_search:
            return beam_params(given | of_beams, defaults, stream_best=best)
        refuse_beams([*of_beams, *["include_best"] * best])
        return SamplingParams(**defaults | given)


class CompletionBody(SamplingBody):
    """A request to `/v1/completions`."""

    prompt: Prompts
    best_of: BestOf = None
    echo: bool | None = None
    logprobs: int | None = None

    @model_validator(mode="after")
    def _prompts_logprobs_are_told_once(self) -> Self:
        if not self.echo or self.logprobs is None:
            return self
        if self.use_beam_search:
            raise ApiError(
                f"logprobs is {self.logprobs} and echo true, but a beam search tells "
                "no log-probabilities of a prompt; leave out echo or logprobs",
                param="logprobs",
            )
        if (self.n or 1) > 1:
            raise ApiError(
                f"n is {self.n}, but with echo and logprobs, a prompt's are told once; "
                "use 1, or leave out echo or logprobs",
                param="n",
            )
        return self

    @property
    def computed_prompt_logprobs(self) -> int | None:
        """Of each token of a prompt, as many as any field asks for."""
        asked = self.prompt_logprobs
        if not self.echo or self.logprobs is None or (asked is not None and asked < 0):
            return asked
        return max(self.logprobs, asked or 0)

    @property
    def renamed(self) -> dict[str, str]:
        """See `SamplingBody.renamed`."""
        of_echo = (
            {} if self.prompt_logprobs is not None else {"prompt_logprobs": "logprobs"}
        )
        return of_echo | super().renamed


class ChatBody(SamplingBody):
    """A request to `/v1/chat/completions`."""

    messages: Messages
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                "top_logprobs needs logprobs: set it to true", param="top_logprobs"
            )
        lengths = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(lengths) > 1:
            raise ApiError(
                f"max_tokens is {self.max_tokens} and max_completion_tokens "
                f"{self.max_completion_tokens}, which mean the same; give one",
                param="max_tokens",
            )
        return self

    @model_validator(mode="after")
    def _continues_an_answer(self) -> Self:
        try:
            _ = self.end
        except RequestError as error:
            raise ApiError(str(error), param="continue_final_message") from None
        return self

    @property
    def end(self) -> ChatEnd:
        """Where the prompt ends."""
        last = self.messages[-1]
        return chat_end(
            {"role": last.role, "tool_calls": last.tool_calls},
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )

    @property
    def continued(self) -> str | None:
        """The text that the answer goes on with."""
        return (
            (self.messages[-1].content or "") if self.continue_final_message else None
        )

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
