"""From a checked request to its answer, whole or as a stream of events."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request, Response

from fdjax.generate.any_params import AnyParams
from fdjax.serve.http.asked import cut
from fdjax.serve.http.errors import DONE, event
from fdjax.serve.http.logprobs import TokenTexts
from fdjax.serve.http.schemas import SamplingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.taken import Taken, take
from fdjax.serve.http.told import prompt_ids, prompt_logprobs
from fdjax.serve.http.whole import (
    Columns,
    Lists,
    WholeSample,
    opening_event,
    whole_answer,
)
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import Prompt
from fdjax.serve.stream import Stream
from fdjax.serve.turns.reader import TurnReader


class Format(Protocol):
    """How an endpoint writes its answers.

    Attributes:
        whole: the name of a whole answer, in its `object`.
        part: the name of an event.
        texts: of single tokens.
        is_of_prompts: each choice tells of its prompt; else the answer does, as there
            is one.
    """

    whole: str
    part: str
    texts: TokenTexts
    is_of_prompts: bool

    def choice(self, index: int, result: WholeSample) -> dict[str, Any]:
        """One sample of a whole answer, without log-probabilities."""
        ...

    def logprobs(self, index: int, chunk: Chunk) -> Columns | None:
        """Those of a sample's next chunk; `None` where they were not asked for."""
        ...

    def openings(self, index: int) -> list[dict[str, Any]]:
        """What a stream says of a sample before its first token; one or nothing."""
        ...

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """What a stream says of a chunk of a sample, one event each."""
        ...


@dataclass
class Generation:
    """How the answer of a request that was taken is written.

    Attributes:
        taken: the request.
        format: of its endpoint.
        tells_ids: the answer has the token ids of prompts and samples.
        num_scores: it has log-probabilities of the prompts' tokens, and so many others
            at each; `None` for none.
        include_usage: a stream's last event has the tokens read and made.
        usage_always: and so have all before it, as many as there were.
    """

    taken: Taken
    format: Format
    tells_ids: bool
    num_scores: int | None
    include_usage: bool
    usage_always: bool

    def frame(self, kind: str) -> dict[str, Any]:
        """What stands before choices."""
        return {
            "id": self.taken.name,
            "object": kind,
            "created": self.taken.created,
            "model": self.taken.server.model.names[0],
        }

    async def answer(self) -> Response:
        """The whole answer."""
        results = [WholeSample() for _ in self.taken.streams]
        scores: dict[int, list[bytes]] = {}
        async with contextlib.aclosing(self.taken.chunks()) as chunks:
            async for index, chunk in chunks:
                if chunk.prompt_logprobs is not None and self.num_scores is not None:
                    scores[index] = await prompt_logprobs(
                        self.format.texts,
                        self._prompt(index),
                        chunk.prompt_logprobs,
                        num_top=self.num_scores,
                    )
                logprobs = self.format.logprobs(index, chunk)
                results[index].add(chunk, logprobs, tells_ids=self.tells_ids)
        firsts = range(0, len(results), self.taken.n)
        prompts = [await self._of_prompt(first, scores.get(first)) for first in firsts]
        return self._written(results, prompts)

    def _written(
        self, results: Sequence[WholeSample], prompts: Sequence[Lists]
    ) -> Response:
        """An answer of all samples, and what is told of their prompts."""
        places = [self._placed(prompt) for prompt in prompts]

        def lists(index: int, result: WholeSample) -> Lists:
            ids: Lists = {"token_ids": result.token_ids} if self.tells_ids else {}
            return {**places[index // self.taken.n][0], **ids}

        choices = (
            result.parts(self.format.choice(index, result), lists(index, result))
            for index, result in enumerate(results)
        )
        frame, (_, of_all) = self.frame(self.format.whole), places[0]
        return whole_answer(frame, choices, of_all, self.taken.usage)

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        frame = self.frame(self.format.part)

        def usage() -> dict[str, Any]:
            if not self.include_usage:
                return {}
            return {"usage": self.taken.usage if self.usage_always else None}

        prompt: Lists = {}
        for index in range(len(self.taken.streams)):
            if index % self.taken.n == 0:
                prompt = await self._of_prompt(index, None)
            for opening in self.format.openings(index):
                yield opening_event(frame, opening, *self._placed(prompt), usage())
        try:
            async with contextlib.aclosing(self.taken.chunks()) as chunks:
                async for index, chunk in chunks:
                    if chunk.best is not None:
                        yield event(frame | {"choices": []} | _so_far(chunk) | usage())
                    for delta in self.format.deltas(index, chunk):
                        yield event(frame | {"choices": [delta]} | usage())
        except Exception as error:
            yield event(self.taken.told(error).body)
        else:
            if self.include_usage:
                yield event(frame | {"choices": [], "usage": self.taken.usage})
        yield DONE

    def _prompt(self, index: int) -> Sequence[int]:
        """The token ids of a sample's prompt."""
        return self.taken.streams[index].request.prompt

    def _placed(self, prompt: Lists) -> tuple[Lists, Lists]:
        """What is told of a prompt: in its choices, and in the answer."""
        return (prompt, {}) if self.format.is_of_prompts else ({}, prompt)

    async def _of_prompt(self, index: int, scores: list[bytes] | None) -> Lists:
        """What is told of the prompt of a sample."""
        lists: dict[str, Sequence[bytes] | None] = {}
        if self.tells_ids:
            lists["prompt_token_ids"] = await prompt_ids(self._prompt(index))
        if self.num_scores is not None:
            lists["prompt_logprobs"] = scores
        return lists


async def respond(
    request: Request,
    server: Server,
    body: SamplingBody,
    *,
    prompts: Sequence[Prompt],
    params: AnyParams,
    id_prefix: str,
    make_format: Callable[[Sequence[Stream]], Format],
    make_reader: Callable[[], TurnReader] | None = None,
) -> Response:
    """Serves a request whose parameters are checked.

    Raises:
        ApiError: see `take`, as for other errors.
    """
    taken = await take(
        request,
        server,
        body,
        prompts=cut(server, prompts, body.truncate_prompt_tokens, params),
        params=params,
        id_prefix=id_prefix,
        make_reader=make_reader,
    )
    options = body.stream_options
    generation = Generation(
        taken,
        make_format(taken.streams),
        tells_ids=bool(body.return_token_ids),
        num_scores=body.prompt_logprobs,
        include_usage=bool(options and options.include_usage),
        usage_always=bool(options and options.continuous_usage_stats),
    )
    if body.stream:
        return taken.streamed(generation.events())
    return await taken.answered(request, generation.answer())


def _so_far(chunk: Chunk) -> dict[str, Any]:
    """The best of a beam search under way: no choice, as it may never be one."""
    best = chunk.best
    assert best is not None
    found = {"prompt": chunk.index, "text": best.text or "", "score": best.score}
    return {"best_so_far": found}
