"""`/tokenize` and `/detokenize`."""

from typing import Any

from fastapi import APIRouter, Request

from fdjax.serve.http.answers import REFUSING, TextAnswer, TokensAnswer
from fdjax.serve.http.calling import check_tools
from fdjax.serve.http.chat_prompt import chat_prompt
from fdjax.serve.http.errors import ApiError, refusals
from fdjax.serve.http.fields import Text, Tokens
from fdjax.serve.http.json_aside import AsideRoute
from fdjax.serve.http.messages import Messages
from fdjax.serve.http.server import Server
from fdjax.serve.http.streams import unless_gone
from fdjax.serve.http.strict_body import Body
from fdjax.serve.http.tenants import owner_of
from fdjax.serve.http.tool_fields import Tools
from fdjax.serve.texts import Texts


class TokenizeBody(Body):
    """A request to `/tokenize`: a text, or a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    tools: Tools = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    """A request to `/detokenize`."""

    model: Text | None = None
    tokens: Tokens


def router(server: Server) -> APIRouter:
    """The paths, over a server."""
    routes = APIRouter(route_class=AsideRoute)

    @routes.post(
        "/tokenize",
        response_model=None,
        responses={200: {"model": TokensAnswer}, **REFUSING},
    )
    async def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
        server.check_model(body.model)
        with refusals(TokenizeBody.model_fields):
            owner = owner_of(request.scope)
            tokens = await unless_gone(request, _tokens(server, body, owner))
        return {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": server.model.max_model_len,
        }

    @routes.post(
        "/detokenize",
        response_model=None,
        responses={200: {"model": TextAnswer}, **REFUSING},
    )
    async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, str]:
        server.check_model(body.model)
        size = server.model.vocab_size
        ids = body.tokens
        if len(ids) > server.model.max_model_len:
            raise ApiError(
                f"tokens has {len(ids)} ids, but max_model_len is "
                f"{server.model.max_model_len}; send fewer at once",
                param="tokens",
            )
        if ids and not 0 <= min(ids) <= max(ids) < size:
            wrong = next(token for token in ids if not 0 <= token < size)
            raise ApiError(
                f"tokens names token {wrong if wrong.bit_length() < 64 else '...'}, "
                f"but the vocabulary has {size}; use ids from 0 to {size - 1}",
                param="tokens",
            )
        texts, owner = _texts(server, "tokens"), owner_of(request.scope)
        return {"prompt": await unless_gone(request, texts.decode(ids, owner=owner))}

    return routes


async def _tokens(server: Server, body: TokenizeBody, owner: str) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give prompt or messages, and not both", param="prompt")
    if body.messages is not None:
        check_tools(server, body.tools)
        chat = await chat_prompt(server, body.messages, body.tools, owner=owner)
        return chat.tokens
    plain = body.add_special_tokens is False
    return await _texts(server, "prompt").encode(
        body.prompt or "", "prompt", plain=plain, owner=owner
    )


def _texts(server: Server, param: str) -> Texts:
    if server.llm.texts is None:
        raise ApiError("the model has no tokenizer", param=param)
    return server.llm.texts
