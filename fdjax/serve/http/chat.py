"""`/v1/chat/completions`: the next turn of a chat."""

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.http.answers import EVENTS, REFUSING, ChatAnswer
from fdjax.serve.http.calling import Calling, calling
from fdjax.serve.http.chat_prompt import chat_prompt
from fdjax.serve.http.errors import refusals
from fdjax.serve.http.generation import respond
from fdjax.serve.http.json_aside import AsideRoute
from fdjax.serve.http.logprobs import TokenTexts, chat_logprobs
from fdjax.serve.http.schemas import ChatBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.taken import ahead
from fdjax.serve.http.tenants import owner_of
from fdjax.serve.http.turn_shapes import delta_of, message_of
from fdjax.serve.http.whole import WholeSample
from fdjax.serve.outputs import Chunk
from fdjax.serve.turns import thinking
from fdjax.serve.turns.reader import TurnReader
from fdjax.serve.turns.turns import Before, Turns


class _Chat:
    """See `Format`."""

    whole = "chat.completion"
    part = "chat.completion.chunk"
    is_of_prompts = False

    def __init__(
        self, texts: TokenTexts, turns: Turns | None, count: int, *, tells_ids: bool
    ) -> None:
        self.texts = texts
        self._tells_ids = tells_ids
        self._turns = turns  # that read the answer
        self._has_called = [False] * count

    def choice(self, index: int, result: WholeSample) -> dict[str, Any]:
        message = {"role": "assistant", "content": result.text}
        reason: str | None = result.finish_reason
        if self._turns is not None:
            message = message_of(result.turn, self._turns.new_id)
            self._has_called[index] = "tool_calls" in message
            reason = self._reason(index, result.finish_reason)
        return {"index": index, "message": message, "finish_reason": reason}

    def openings(self, index: int) -> list[dict[str, Any]]:
        return [_event(index, {"role": "assistant", "content": ""})]

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        if self._turns is None:
            deltas = [{"content": chunk.text} if chunk.text else {}]
        else:
            new_id = self._turns.new_id
            parts = chunk.parts or ()
            self._has_called[index] |= any(part.kind == "call" for part in parts)
            deltas = [*filter(None, (delta_of(part, new_id) for part in parts))]
            # Some clients look no further at what comes with the end.
            deltas += [{}] * (not deltas or chunk.finish_reason is not None)
        ids = {"token_ids": chunk.token_ids} if self._tells_ids else {}
        if not (
            any(deltas) or chunk.logprobs or chunk.finish_reason or any(ids.values())
        ):
            return []
        events = [_event(index, delta) for delta in deltas]
        events[0] |= ids
        events[0]["logprobs"] = self.logprobs(index, chunk)
        events[-1]["finish_reason"] = self._reason(index, chunk.finish_reason)
        return events

    def _reason(self, index: int, reason: str | None) -> str | None:
        is_call = reason == "stop" and self._has_called[index]
        return "tool_calls" if is_call else reason

    def logprobs(self, index: int, chunk: Chunk) -> dict[str, list[Any]] | None:
        del index
        if chunk.logprobs is None:
            return None
        return chat_logprobs(self.texts, chunk.token_ids, chunk.logprobs)


def _event(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def router(server: Server, texts: TokenTexts) -> APIRouter:
    """The path, over a server."""
    routes = APIRouter(route_class=AsideRoute)

    @routes.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatAnswer, "content": EVENTS}, **REFUSING},
    )
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        server.check_model(body.model)
        with turn_refusals(body):
            turn = await asked_turn(request, server, body)
            return await respond(
                request,
                server,
                body,
                prompts=[turn.tokens],
                params=turn.params,
                id_prefix="chatcmpl",
                make_format=lambda streams: _Chat(
                    texts,
                    turn.turns,
                    len(streams),
                    tells_ids=bool(body.return_token_ids),
                ),
                make_reader=turn.make_reader,
            )

    return routes


@dataclass(frozen=True)
class AskedTurn:
    """The next turn of a chat, as the engine is asked for it.

    Attributes:
        tokens: of the prompt.
        params: how to continue it.
        turns: what reads the answer; `None` where it is text alone.
        make_reader: of one sample, likewise.
    """

    tokens: list[int]
    params: SamplingParams | BeamSearchParams
    turns: Turns | None
    make_reader: Callable[[], TurnReader] | None


def turn_refusals(body: ChatBody) -> AbstractContextManager[None]:
    """Turns what may be wrong with a turn into an error that names its field."""
    renamed = {"prompt": "messages", **body.renamed}
    if body.tools and body.tool_choice != "none":
        renamed["structured_outputs"] = "tools"
    return refusals(ChatBody.model_fields, **renamed)


async def asked_turn(request: Request, server: Server, body: ChatBody) -> AskedTurn:
    """What a chat asks for.

    Raises:
        ApiError: the fields do not suit each other, or the model.
        RequestError: a value is out of range, or see `chat_prompt`.
        QueueFullError: too many requests wait: nothing was rendered.
        RequestTimeoutError: it took too long.
        ClientGoneError: nobody waits for it any more.
    """
    tools = calling(server, body)
    defaults = {
        **server.model.sampling,
        "max_tokens": body.max_completion_tokens,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "prompt_logprobs": body.prompt_logprobs,
    }
    if tools is not None and (form := tools.form) is not None:
        defaults["structured_outputs"] = form
    params = body.sampling(defaults)
    rendering = functools.partial(
        chat_prompt,
        server,
        body.messages,
        tools and tools.tools,
        body.template_options,
        end=body.end,
        owner=owner_of(request.scope),
    )
    prompt = await ahead(request, server, body, params, rendering)
    turns = _reading(server, tools)
    before = Before(prompt.text, body.continued)
    params = _after_reasoning(params, turns, before)
    make_reader = turns and _readers(turns, tools, before)
    return AskedTurn(prompt.tokens, params, turns, make_reader)


def _reading(server: Server, tools: Calling | None) -> Turns | None:
    """What reads the answer; `None` where it is text alone."""
    turns = server.model.turns
    is_read = turns is not None and (tools is not None or turns.splits_reasoning)
    return turns if is_read else None


def _readers(
    turns: Turns, tools: Calling | None, before: Before
) -> Callable[[], TurnReader]:
    parallel = tools is None or tools.parallel
    callable_tools = () if tools is None else tools.callable
    return lambda: turns.reader(before, callable_tools, parallel=parallel)


def _after_reasoning(
    params: SamplingParams | BeamSearchParams, turns: Turns | None, before: Before
) -> SamplingParams | BeamSearchParams:
    """Leaves the model its reasoning, whatever form its answer has."""
    form = params.structured_outputs
    if form is None or turns is None or not turns.may_reason(before):
        return params
    form = dataclasses.replace(form, after=thinking.END)
    return dataclasses.replace(params, structured_outputs=form)
