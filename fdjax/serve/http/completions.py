"""`/v1/completions`: texts continued."""

import itertools
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from fdjax.engine.request import Request as EngineRequest
from fdjax.serve.http.answers import EVENTS, REFUSING, CompletionAnswer
from fdjax.serve.http.errors import refusals
from fdjax.serve.http.generation import respond
from fdjax.serve.http.json_aside import AsideRoute
from fdjax.serve.http.logprobs import TokenTexts, completion_logprobs
from fdjax.serve.http.schemas import CompletionBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.whole import WholeSample
from fdjax.serve.outputs import Chunk
from fdjax.serve.stream import Stream
from fdjax.serve.tokenizer import Tokenizer


class _Completions:
    """See `Format`."""

    whole = part = "text_completion"
    is_of_prompts = True

    def __init__(
        self,
        texts: TokenTexts,
        body: CompletionBody,
        echoes: Sequence[str],
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self.texts = texts
        self._body = body
        self._echoes = echoes
        self._prompts = prompts
        self._offsets = [len(echo) for echo in echoes]

    def choice(self, index: int, result: WholeSample) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._echoes[index] + result.text,
            "finish_reason": result.finish_reason,
        }

    def openings(self, index: int) -> list[dict[str, Any]]:
        echo, tells_ids = self._echoes[index], self._body.return_token_ids
        return [self._part(index, echo, None, None, ())] if echo or tells_ids else []

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        text, reason = chunk.text or "", chunk.finish_reason
        ids = chunk.token_ids if self._body.return_token_ids else ()
        if not (text or chunk.logprobs or reason or ids):
            return []
        return [self._part(index, text, self.logprobs(index, chunk), reason, ids)]

    def _part(
        self,
        index: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None,
        token_ids: Sequence[int],
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            **({"token_ids": token_ids} if self._body.return_token_ids else {}),
        }

    def logprobs(self, index: int, chunk: Chunk) -> dict[str, list[Any]] | None:
        num_top = self._body.logprobs
        if chunk.logprobs is None or num_top is None:
            return None
        token_ids, entries = chunk.token_ids, chunk.logprobs
        is_shown = self._body.skip_special_tokens is False
        *offsets, end = self._places(token_ids, self._offsets[index], is_shown)
        self._offsets[index] = end
        if chunk.prompt_logprobs is not None and self._body.echo:
            prompt = self._prompts[index]
            token_ids = [*prompt, *token_ids]
            entries = [*chunk.prompt_logprobs, *entries]
            *before, end = self._places(prompt, 0, is_shown=False)
            # A tokenizer may strip what the first token begins with.
            more = end - len(self._echoes[index])
            offsets = [*(max(0, place - more) for place in before), *offsets]
        return completion_logprobs(
            self.texts, token_ids, entries, num_top=num_top, offsets=offsets
        )

    def _places(self, tokens: Sequence[int], begin: int, is_shown: bool) -> list[int]:
        """Where tokens begin in a text, and where the last one ends."""
        widths = [self.texts.width(token, is_shown=is_shown) for token in tokens]
        return [*itertools.accumulate(widths, initial=begin)]


def router(server: Server, texts: TokenTexts) -> APIRouter:
    """The path, over a server."""
    routes = APIRouter(route_class=AsideRoute)

    @routes.post(
        "/v1/completions",
        response_model=None,
        responses={200: {"model": CompletionAnswer, "content": EVENTS}, **REFUSING},
    )
    async def completions(request: Request, body: CompletionBody) -> Response:
        server.check_model(body.model)

        def make_format(streams: Sequence[Stream]) -> _Completions:
            tokenizer = server.llm.tokenizer if body.echo else None
            prompts = [stream.request.prompt for stream in streams]
            echoes = _echoes(tokenizer, body, streams)
            return _Completions(texts, body, echoes, prompts)

        with refusals(CompletionBody.model_fields, **body.renamed):
            defaults = {
                **server.model.sampling,
                "logprobs": body.logprobs,
                "prompt_logprobs": body.computed_prompt_logprobs,
            }
            return await respond(
                request,
                server,
                body,
                prompts=body.prompt,
                params=body.sampling(defaults),
                id_prefix="cmpl",
                make_format=make_format,
            )

    return routes


def _echoes(
    tokenizer: Tokenizer | None, body: CompletionBody, streams: Sequence[Stream]
) -> list[str]:
    """The text of each stream's prompt, empty where it is not to be echoed."""
    if tokenizer is None:
        return [""] * len(streams)
    return [_echo(tokenizer, body, stream.request) for stream in streams]


def _echo(tokenizer: Tokenizer, body: CompletionBody, request: EngineRequest) -> str:
    prompt = body.prompt[request.index]
    if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
        return prompt
    return tokenizer.decode(request.prompt)
