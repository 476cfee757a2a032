"""From a checked request to its answer, whole or as a stream of events."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request, Response

from fdjax.generate.any_params import AnyParams
from fdjax.serve.http.asked import cut
from fdjax.serve.http.errors import DONE, event
from fdjax.serve.http.schemas import SamplingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.taken import Taken, take
from fdjax.serve.http.whole import Columns, Result, whole_answer
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import Prompt
from fdjax.serve.stream import Stream
from fdjax.serve.turns.reader import TurnReader


class Format(Protocol):
    """How an endpoint writes its answers.

    Attributes:
        whole: the name of a whole answer, in its `object`.
        part: the name of an event.
    """

    whole: str
    part: str

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """One sample of a whole answer, without log-probabilities."""
        ...

    def logprobs(self, index: int, chunk: Chunk) -> Columns | None:
        """Those of a sample's next chunk; `None` where they were not asked for."""
        ...

    def openings(self, index: int) -> list[dict[str, Any]]:
        """What a stream says of a sample before its first token."""
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
        include_usage: a stream's last event has the tokens read and made.
        usage_always: and so have all before it, as many as there were.
    """

    taken: Taken
    format: Format
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
        results = [Result() for _ in self.taken.streams]
        async with contextlib.aclosing(self.taken.chunks()) as chunks:
            async for index, chunk in chunks:
                results[index].add(chunk, self.format.logprobs(index, chunk))
        choices = (
            result.parts(self.format.choice(index, result))
            for index, result in enumerate(results)
        )
        return whole_answer(self.frame(self.format.whole), choices, self.taken.usage)

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        frame = self.frame(self.format.part)

        def usage() -> dict[str, Any]:
            if not self.include_usage:
                return {}
            return {"usage": self.taken.usage if self.usage_always else None}

        def part(choice: dict[str, Any]) -> bytes:
            return event(frame | {"choices": [choice]} | usage())

        for index in range(len(self.taken.streams)):
            for opening in self.format.openings(index):
                yield part(opening)
        try:
            async with contextlib.aclosing(self.taken.chunks()) as chunks:
                async for index, chunk in chunks:
                    if chunk.best is not None:
                        yield event(frame | {"choices": []} | _so_far(chunk) | usage())
                    for delta in self.format.deltas(index, chunk):
                        yield part(delta)
        except Exception as error:
            yield event(self.taken.told(error).body)
        else:
            if self.include_usage:
                yield event(frame | {"choices": [], "usage": self.taken.usage})
        yield DONE


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
