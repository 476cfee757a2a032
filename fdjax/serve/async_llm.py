"""`AsyncLLM`: an engine for asyncio, where requests come and go."""

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fdjax.engine.origin import Origin
from fdjax.engine.statistics import EngineStatistics
from fdjax.errors import RequestTimeoutError
from fdjax.generate.any_params import AnyParams
from fdjax.generate.stopping import FinishReason
from fdjax.serve.claims import Claim
from fdjax.serve.grammars import Grammars
from fdjax.serve.in_thread import InThread
from fdjax.serve.llm import LLM
from fdjax.serve.merging import merged
from fdjax.serve.names import Names
from fdjax.serve.outputs import Chunk
from fdjax.serve.prompts import CutPrompt, Prompt
from fdjax.serve.reading import Reading
from fdjax.serve.running_engine import RunningEngine
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.starting import Starting
from fdjax.serve.stream import Stream
from fdjax.serve.texts import TextLimit, Texts
from fdjax.serve.tokenizer import Tokenizer
from fdjax.serve.turns.reader import TurnReader


class AsyncLLM:
    """Continues prompts for tasks of asyncio, with an engine in a thread of its own.

    Args:
        engine: used by nothing else from now on.
        tokenizer: of the model; without one, prompts are token ids and there is no
            text.
        grammars: makes those of structured outputs, which are refused without it.
        text_limit: longer ones are refused before they are tokenised.

    Attributes:
        texts: to tokenise them beside all else; `None` without a tokenizer.
    """

    def __init__(
        self,
        engine: ServingEngine,
        tokenizer: Tokenizer | None,
        grammars: Grammars | None = None,
        *,
        text_limit: TextLimit | None = None,
    ) -> None:
        self._serve(InThread(engine, tokenizer, grammars), tokenizer, text_limit)

    def _serve(
        self,
        running: RunningEngine,
        tokenizer: Tokenizer | None,
        text_limit: TextLimit | None,
    ) -> None:
        self._running = running
        self.tokenizer = tokenizer
        self.texts = None if tokenizer is None else Texts(tokenizer, text_limit)
        reading = Reading(tokenizer, self.texts)
        self._starting = Starting(running, tokenizer, reading)
        self._names = Names()

    @classmethod
    def over(
        cls,
        running: RunningEngine,
        tokenizer: Tokenizer | None,
        *,
        text_limit: TextLimit | None = None,
    ) -> "AsyncLLM":
        """Over an engine that runs already, wherever that is.

        Args:
            running: used by nothing else from now on, and closed with this.
            tokenizer: see above, as for the next.
            text_limit: as above.
        """
        llm = cls.__new__(cls)
        llm._serve(running, tokenizer, text_limit)
        return llm

    @classmethod
    def of(cls, llm: LLM) -> "AsyncLLM":
        """Over a model that is loaded; its `LLM` serves nothing from now on."""
        limit = None
        if llm.tokenizer is not None:
            limit = TextLimit.of(
                llm.tokenizer, max_model_len=llm.engine.plan.max_model_len
            )
        return cls(llm.engine, llm.tokenizer, llm.grammars, text_limit=limit)

    @classmethod
    def from_model(
        cls, model: str | pathlib.Path = "tales-5m", **options: Any
    ) -> "AsyncLLM":
        """Loads a model; the programs that requests need compile as they come.

        Args:
            model: see `LLM`.
            options: see `LLM`; what raises there raises here.
        """
        return cls.of(LLM(model, **options))

    @property
    def is_running(self) -> bool:
        """Requests can be served."""
        return not self._running.ended

    @property
    def errored(self) -> bool:
        """The engine has failed: only a new one can serve requests."""
        return self._running.error is not None

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return self._running.num_unfinished

    @property
    def num_made(self) -> int:
        """Tokens that the engine has made, read or not."""
        return self._running.num_made

    @property
    def step_age_s(self) -> float:
        """Seconds of the engine's step under way; see `StepClock`."""
        return self._running.step_age_s

    async def look(self) -> None:
        """Has `statistics`, and the numbers above, be those of a later moment.

        They are where the engine is in this process; another one is asked.
        """
        await self._running.look()

    def statistics(self) -> EngineStatistics:
        """One look at what the engine has counted; it is not waited for."""
        return self._running.statistics()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: AnyParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[Chunk]:
        """Continues one prompt; a task that is cancelled or leaves aborts it.

        Args:
            prompt: a text or token ids, also as `{"prompt": ...}` or
                `{"prompt_token_ids": ...}`.
            sampling_params: how to continue it.
            request_id: a name for `abort`, which the chunks have too; a number by
                default.
            priority: lower ones go first.

        Yields:
            New tokens and text of any of its samples; the last chunk of each has the
            reason for its end.

        Raises:
            RequestError: the prompt or the parameters cannot be served, or another
                request of that name is under way.
            QueueFullError: as many requests wait as may.
            EngineDeadError: the engine has failed, now or before.
        """
        with self._names.taken(request_id) as named:
            origin = Origin(priority=priority)
            streams = await self.start([prompt], sampling_params, origin)
            named.started(streams)
            num_left = len(streams)
            async with contextlib.aclosing(merged(streams)) as chunks:
                async for _, chunk in chunks:
                    num_left -= chunk.finish_reason is not None
                    if num_left:
                        yield chunk
                    else:
                        yield dataclasses.replace(chunk, finished=True)

    async def abort(self, request_id: str) -> None:
        """Ends a request that is under way: its last chunks say "abort"."""
        self._names.end(request_id, FinishReason.ABORTED)

    async def start(
        self,
        prompts: Sequence[CutPrompt],
        params: AnyParams,
        origin: Origin | None = None,
        *,
        charge: Callable[[int], AbstractContextManager[None]] | None = None,
        seconds: float | None = None,
        make_reader: Callable[[], TurnReader] | None = None,
    ) -> list[Stream]:
        """Lets the engine take several requests, or none of them.

        Args:
            prompts: texts or token ids, whole or the last tokens of them.
            params: of all.
            origin: on whose behalf they are; nobody's by default.
            charge: told how many tokens the prompts have before anything is compiled
                for them, and the engine takes them. What it raises refuses them, and
                its block ends with the error if one of these does.
            seconds: until all has come; then the streams end with the reason
                `TIMED_OUT`. `None` lets it take any time.
            make_reader: what reads a sample's text as an assistant's turn, one each.

        Returns:
            The streams of the first prompt's `n` samples, then those of the next.
            Whoever does not read one to its end closes it.

        Raises:
            RequestError: a prompt or the parameters cannot be served.
            QueueFullError: as many requests wait as may.
            RequestTimeoutError: `seconds` were over before the engine had them.
            EngineDeadError: the engine has failed, or was shut down.
        """
        origin = origin or Origin()
        deadline_s = None
        if seconds is not None:
            deadline_s = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._starting.start(
                    prompts,
                    params,
                    origin,
                    charge=charge,
                    deadline_s=deadline_s,
                    make_reader=make_reader,
                )
        except TimeoutError:
            raise RequestTimeoutError(
                f"the request was not with the engine after {seconds:g} seconds"
            ) from None

    def room(
        self, num_prompts: int, params: AnyParams, origin: Origin
    ) -> AbstractContextManager[Claim]:
        """Keeps room in the queue for a request, during a block.

        Args:
            num_prompts: of the request.
            params: of all.
            origin: on whose behalf it is.

        Raises:
            RequestError: there never is any.
            QueueFullError: as many requests wait as may.
        """
        return self._starting.room(num_prompts, params, origin)

    def close(self, *, seconds: float | None = None) -> bool:
        """Ends all requests, and the thread.

        Args:
            seconds: to wait for the step under way, and for what the device has to do
                still; `None` waits until that is done.

        Returns:
            Whether the thread has ended.
        """
        if self.texts is not None:
            self.texts.close()
        return self._running.close(seconds=seconds)

    def shutdown(self) -> None:
        """`close`, by vLLM's name."""
        self.close()
