"""`/tokenize` and `/detokenize`."""

from typing import Any

from fastapi import APIRouter

from fdjax.serve.http.answers import REFUSING, TextAnswer, TokensAnswer
from fdjax.serve.http.calling import check_tools
from fdjax.serve.http.chat import chat_prompt
from fdjax.serve.http.errors import ApiError, refusals
from fdjax.serve.http.schemas import DetokenizeBody, TokenizeBody
from fdjax.serve.http.server import Server
from fdjax.serve.texts import Texts


def router(server: Server) -> APIRouter:
    """The paths, over a server."""
    routes = APIRouter()

    @routes.post(
        "/tokenize",
        response_model=None,
        responses={200: {"model": TokensAnswer}, **REFUSING},
    )
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        server.check_model(body.model)
        with refusals(TokenizeBody.model_fields):
            tokens = await _tokens(server, body)
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
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
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
        return {"prompt": await _texts(server, "tokens").decode(ids)}

    return routes


async def _tokens(server: Server, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give prompt or messages, and not both", param="prompt")
    if body.messages is not None:
        check_tools(server, body.tools)
        return (await chat_prompt(server, body.messages, body.tools)).tokens
    plain = body.add_special_tokens is False
    return await _texts(server, "prompt").encode(
        body.prompt or "", "prompt", plain=plain
    )


def _texts(server: Server, param: str) -> Texts:
    if server.llm.texts is None:
        raise ApiError("the model has no tokenizer", param=param)
    return server.llm.texts
