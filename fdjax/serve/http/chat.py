"""`/v1/chat/completions`: the next turn of a chat."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from fdjax.serve.http.answers import EVENTS, REFUSING, ChatAnswer
from fdjax.serve.http.errors import ApiError, refusals
from fdjax.serve.http.generation import respond
from fdjax.serve.http.logprobs import TokenTexts, chat_logprobs
from fdjax.serve.http.schemas import ChatBody, Message
from fdjax.serve.http.server import Server
from fdjax.serve.http.whole import Result
from fdjax.serve.outputs import Chunk


class _Chat:
    """See `Format`."""

    id_prefix = "chatcmpl"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.text},
            "finish_reason": result.finish_reason,
        }

    def openings(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        ]

    def delta(self, index: int, chunk: Chunk) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"content": chunk.text} if chunk.text else {},
            "logprobs": self.logprobs(index, chunk),
            "finish_reason": chunk.finish_reason,
        }

    def logprobs(self, index: int, chunk: Chunk) -> dict[str, list[Any]] | None:
        del index
        if chunk.logprobs is None:
            return None
        return chat_logprobs(self._texts, chunk.token_ids, chunk.logprobs)


async def chat_tokens(server: Server, messages: Sequence[Message]) -> list[int]:
    """The prompt that a chat becomes, by the model's template.

    Raises:
        ApiError: the model has no tokenizer.
        RequestError: the chat is too long, before or after the template; or the
            template refuses it.
    """
    texts = server.llm.texts
    if server.model.chat is None or texts is None:
        raise ApiError("the model has no tokenizer, and so no chat", param="messages")
    if len(messages) > server.limits.messages:
        raise ApiError(
            f"messages has {len(messages)} entries; use at most "
            f"{server.limits.messages}",
            param="messages",
        )
    texts.check([message.content for message in messages], "messages")
    plain = [message.plain() for message in messages]
    chat = await asyncio.to_thread(server.model.chat, plain)
    return await texts.encode(chat.text, "messages", plain=chat.plain)


def router(server: Server, texts: TokenTexts) -> APIRouter:
    """The path, over a server."""
    routes = APIRouter()

    @routes.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatAnswer, "content": EVENTS}, **REFUSING},
    )
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        server.check_model(body.model)
        defaults = {
            **server.model.sampling,
            "max_tokens": body.max_completion_tokens,
            "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        }
        with refusals(ChatBody.model_fields, prompt="messages", **body.renamed):
            params = body.sampling(defaults)
            return await respond(
                request,
                server,
                body,
                prompts=[await chat_tokens(server, body.messages)],
                params=params,
                make_format=lambda streams: _Chat(texts),
            )

    return routes
