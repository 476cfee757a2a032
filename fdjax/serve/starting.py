"""`Starting`: from prompts to streams, by way of a place in the engine's queue."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.generate.any_params import AnyParams, by_kind, num_outputs
from fdjax.serve.claims import Claim
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.prompts import CutPrompt
from fdjax.serve.reading import Reading
from fdjax.serve.running_engine import RunningEngine
from fdjax.serve.stream import Stream
from fdjax.serve.tickets import OnLoop, Submission, Ticket
from fdjax.serve.tokenizer import Tokenizer
from fdjax.serve.turns.reader import TurnReader


class Starting:
    """Lets an engine take requests, whose prompts are read.

    Args:
        running: the engine.
        tokenizer: of the model; without one, streams have no text.
        reading: from prompts to token ids.
    """

    def __init__(
        self,
        running: RunningEngine,
        tokenizer: Tokenizer | None,
        reading: Reading,
    ) -> None:
        self._running = running
        self._tokenizer = tokenizer
        self._reading = reading
        self._to: OnLoop | None = None

    def room(
        self, num_prompts: int, params: AnyParams, origin: Origin
    ) -> AbstractContextManager[Claim]:
        """See `AsyncLLM.room`."""
        num_samples = num_prompts * num_outputs(params)
        return self._running.claim(Load(1, num_samples, num_samples), origin)

    async def start(
        self,
        prompts: Sequence[CutPrompt],
        params: AnyParams,
        origin: Origin,
        *,
        charge: Callable[[int], AbstractContextManager[None]] | None,
        deadline_s: float | None,
        make_reader: Callable[[], TurnReader] | None,
    ) -> list[Stream]:
        """Starts prompts; where the queue is full, nothing of them is read.

        Args:
            prompts: see `AsyncLLM.start`, as the others are.
            params: of all.
            origin: on whose behalf they are.
            charge: told how many tokens the prompts have.
            deadline_s: when the streams end, by the loop's time; `None`: never.
            make_reader: what reads a sample's text.

        Returns:
            The streams of the first prompt's samples, then those of the next.
        """
        if not prompts:
            return []
        params = by_kind(params)
        n = num_outputs(params)
        with self.room(len(prompts), params, origin) as claim:
            submissions = await self._reading.submissions(prompts, params, origin.owner)
            num_tokens = sum(len(submission.prompt) for submission in submissions)
            with charge(num_tokens) if charge else contextlib.nullcontext():
                return await self._streams(
                    submissions, n, claim, deadline_s, make_reader
                )

    async def _streams(
        self,
        submissions: Sequence[Submission],
        n: int,
        claim: Claim,
        deadline_s: float | None,
        make_reader: Callable[[], TurnReader] | None,
    ) -> list[Stream]:
        """Those of `n` samples of each submission, once the engine has them."""
        to, of_sequence = self._receiver(), n // len(submissions[0].samples)
        tickets = [Ticket(to) for _ in submissions for _ in range(n)]
        owners = _owners(tickets, of_sequence)
        try:
            taken = await self._running.add(submissions, owners, claim)
            requests = [request for request in taken for _ in range(of_sequence)]
            return [
                Stream(
                    self._running,
                    ticket,
                    request,
                    Detokenizer(
                        self._tokenizer,
                        request,
                        sample=place % n,
                        reader=make_reader and make_reader(),
                    ),
                    deadline_s=deadline_s,
                )
                for place, (ticket, request) in enumerate(
                    zip(tickets, requests, strict=True)
                )
            ]
        except BaseException:  # the task may be cancelled when the engine has them
            self._running.abort(tickets)
            raise

    def _receiver(self) -> OnLoop:
        """Of the running loop: one, so that all of a step come to it by one call."""
        loop = asyncio.get_running_loop()
        if self._to is None or self._to.loop is not loop:
            self._to = OnLoop(loop)
        return self._to


def _owners(tickets: Sequence[Ticket], of_sequence: int) -> list[Ticket]:
    """The tickets that the engine knows: of a search's outputs one, with the others."""
    owners = list(tickets[::of_sequence])
    for place, owner in enumerate(owners):
        begin = place * of_sequence
        owner.others = list(tickets[begin + 1 : begin + of_sequence])
    return owners
