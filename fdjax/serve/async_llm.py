"""`AsyncLLM`: an engine for asyncio, where requests come and go."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Sequence

from fdjax.engine.request import Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import EngineDeadError, QueueFullError
from fdjax.generate.params import SamplingParams
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.engine_thread import Call, EngineThread, ServingEngine, Ticket
from fdjax.serve.grammars import Grammars, TokenGrammar
from fdjax.serve.merging import merged
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import Prompt, token_ids_of
from fdjax.serve.tokenizer import Tokenizer

_GRAMMAR_SECONDS = 10.0


class Stream:
    """The chunks of one request, as they come: an asynchronous iterator.

    Attributes:
        request: as the engine checked it.
    """

    def __init__(
        self, thread: EngineThread, ticket: Ticket, request: Request, to: Detokenizer
    ) -> None:
        self._thread = thread
        self._ticket = ticket
        self._detokenizer = to
        self._closed = False
        self.request = request

    @property
    def admitted_s(self) -> float | None:
        """When it was let in, by `time.monotonic`; known with the first chunk."""
        return self._ticket.admitted_s

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Chunk:
        if self._closed:
            raise StopAsyncIteration
        item = await self._ticket.inbox.get()
        if isinstance(item, EngineDeadError):
            self._closed = True
            raise item
        chunk = self._detokenizer.chunk(item)
        if self._detokenizer.ended:
            self.close()
        return chunk

    def close(self) -> None:
        """Aborts the request, if it has not ended."""
        if not self._closed:
            self._closed = True
            self._thread.abort([self._ticket])


class AsyncLLM:
    """Continues prompts for tasks of asyncio, with an engine in a thread of its own.

    Args:
        engine: used by nothing else from now on.
        tokenizer: of the model; without one, prompts are token ids and there is no
            text.
        grammars: makes those of structured outputs, which are refused without it.
    """

    def __init__(
        self,
        engine: ServingEngine,
        tokenizer: Tokenizer | None,
        grammars: Grammars | None = None,
    ) -> None:
        self._thread = EngineThread(engine)
        self._grammars = grammars
        if grammars is not None:
            grammars.prepare()
        self.tokenizer = tokenizer

    @property
    def is_running(self) -> bool:
        """Requests can be served."""
        return not self._thread.ended

    @property
    def errored(self) -> bool:
        """The engine has failed: only a new one can serve requests."""
        return self._thread.error is not None

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return self._thread.num_unfinished

    def statistics(self) -> EngineStatistics:
        """One look at what the engine has counted; it is not waited for."""
        return self._thread.statistics()

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, priority: int = 0
    ) -> AsyncGenerator[Chunk]:
        """Continues one prompt; a task that is cancelled or leaves aborts it.

        Args:
            prompt: a text, or token ids.
            params: how to continue it.
            priority: lower ones go first.

        Yields:
            New tokens and text of any of its samples; the last chunk of each has the
            reason for its end.

        Raises:
            RequestError: the prompt or the parameters cannot be served.
            QueueFullError: as many requests wait as may.
            EngineDeadError: the engine has failed, now or before.
        """
        streams = await self.start([prompt], params, priority=priority)
        async with contextlib.aclosing(merged(streams)) as chunks:
            async for _, chunk in chunks:
                yield chunk

    async def start(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
    ) -> list[Stream]:
        """Lets the engine take several requests, or none of them.

        Args:
            prompts: texts or token ids.
            params: of all.
            priority: lower ones go first.
            salt: requests of different salts share no cached prefixes.

        Returns:
            The streams of the first prompt's `n` samples, then those of the next.
            Whoever does not read one to its end closes it.

        Raises:
            RequestError: a prompt or the parameters cannot be served.
            QueueFullError: as many requests wait as may.
            EngineDeadError: the engine has failed, or was shut down.
        """
        loop = asyncio.get_running_loop()
        grammar = await self._grammar(params)
        samples = params.samples()
        calls = [
            Call(index, token_ids, sample, priority, salt, grammar)
            for index, token_ids in enumerate(await self._encode(prompts))
            for sample in samples
        ]
        tickets = [Ticket(loop) for _ in calls]
        try:
            requests = await asyncio.wrap_future(self._thread.add(calls, tickets))
            return [
                Stream(
                    self._thread,
                    ticket,
                    request,
                    Detokenizer(self.tokenizer, request, sample=place % params.n),
                )
                for place, (ticket, request) in enumerate(
                    zip(tickets, requests, strict=True)
                )
            ]
        except BaseException:  # the task may be cancelled when the engine has them
            self._thread.abort(tickets)
            raise

    def close(self) -> None:
        """Ends all requests, and the thread."""
        self._thread.close()

    async def _grammar(self, params: SamplingParams) -> TokenGrammar | None:
        """Compiled while the other tasks go on."""
        if params.structured_outputs is None or self._grammars is None:
            return None
        try:
            async with asyncio.timeout(_GRAMMAR_SECONDS):
                return await asyncio.wrap_future(self._grammars.submit(params))
        except TimeoutError:
            raise QueueFullError(
                f"the grammar was not ready after {_GRAMMAR_SECONDS:g} seconds: others "
                "are before it; try later"
            ) from None

    async def _encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Token ids; long texts must not hold up the other tasks."""
        encode = functools.partial(token_ids_of, tokenizer=self.tokenizer)
        return [
            await asyncio.to_thread(encode, prompt, index)
            for index, prompt in enumerate(prompts)
        ]
