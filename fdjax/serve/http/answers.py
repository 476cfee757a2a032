"""What the server answers, as `/openapi.json` says; the tests hold it to that."""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel

from fdjax.serve.http.told import OfOutput, OfPrompt

type FinishReason = Literal["stop", "length", "abort"]
type ChatFinishReason = Literal["stop", "length", "abort", "tool_calls"]


class Fault(BaseModel):
    """What is wrong with a request, or with the server."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """OpenAI's error object."""

    error: Fault


class PromptTokensDetails(BaseModel):
    """Of them, those that were found in the prefix cache."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """Log-probabilities by token; a prompt's first token has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(OfPrompt, OfOutput):
    """One sample of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionAnswer(BaseModel):
    """The answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(BaseModel):
    """A token that was likely."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """The token that was chosen."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities by token."""

    content: list[ChatLogprob]


class CalledFunction(BaseModel):
    """A function's name, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    """The next turn; without `tool_calls` and `reasoning` where it has none."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] = []
    reasoning: str = ""


class ChatChoice(OfOutput):
    """One sample of the next turn."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatAnswer(OfPrompt):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Model(BaseModel):
    """A name that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    """The answer of `/v1/models`."""

    object: Literal["list"]
    data: list[Model]


class Version(BaseModel):
    """The answer of `/version`."""

    version: str


class ResponseAnswer(BaseModel):
    """The answer of `/v1/responses`, in OpenAI's words."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    background: Literal[False]
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: dict[str, Any]
    user: str | None


class EmbeddingEntry(BaseModel):
    """The vector of one text: numbers, or the base64 of float32, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingsUsage


class TokensAnswer(BaseModel):
    """The answer of `/tokenize`."""

    tokens: list[int]
    count: int
    max_model_len: int


class TextAnswer(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str


class Aborted(BaseModel):
    """The answer of `/v1/requests/{id}/abort`."""

    id: str
    object: Literal["request"]
    aborted: bool


_ERRORS = {
    400: "A field is wrong, unknown or out of range.",
    401: "The API key is missing or wrong.",
    404: "The model is not served.",
    408: "The body was not there in time.",
    413: "The body is too long.",
    429: "A quota of the key is used up.",
    500: "A fault of the server.",
    503: "The queue is full, the server drains, or its engine has failed.",
    504: "The request was not done in time.",
}

# `responses` of a path's decorator: only the error of a key, of an id, or every one.
KEYED: dict[int | str, dict[str, Any]] = {
    401: {"model": Failure, "description": _ERRORS[401]}
}
UNKNOWN_REQUEST: dict[int | str, dict[str, Any]] = {
    404: {"model": Failure, "description": "No such request of this key is under way."}
}
ABORTED: dict[int | str, dict[str, Any]] = {
    409: {"model": Failure, "description": "Whoever made the request has ended it."}
}
UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {
    404: {"model": Failure, "description": _ERRORS[404]}
}
REFUSING: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": text} for status, text in _ERRORS.items()
}


def events(description: str, *, named: bool = False) -> dict[str, Any]:
    """The content of an answer that may be a stream, by the schema of each event.

    Args:
        description: of the stream.
        named: each event has a name besides its data.
    """
    fields = ["event", "data"] if named else ["data"]
    each = {
        "type": "object",
        "description": description,
        "properties": {field: {"type": "string"} for field in fields},
        "required": fields,
    }
    return {"text/event-stream": {"itemSchema": each}}


EVENTS = events("With `stream`: chunks as OpenAI's, then `[DONE]`.")


def without_422(app: FastAPI) -> None:
    """Takes out what FastAPI says of bodies that do not fit: they are answered 400."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi
