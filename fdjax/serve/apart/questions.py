"""Questions to an engine's process, and who waits for its answers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fdjax.errors import EngineDeadError
from fdjax.serve.apart import asking
from fdjax.serve.apart.wire import Column, Message
from fdjax.serve.claims import Claim


@dataclass(frozen=True)
class _Question:
    """What the engine's process is to answer.

    Attributes:
        answer: the fields of its answer.
        claim: room that the engine's queue counts from then on.
    """

    answer: asyncio.Future[dict[str, Any]]
    claim: Claim | None = None


class Questions:
    """All that is to be answered.

    Args:
        send: sends a message.
        give_back: ends a claim.
    """

    def __init__(
        self, send: Callable[[Message], None], give_back: Callable[[Claim], None]
    ) -> None:
        self._send = send
        self._give_back = give_back
        self._questions: dict[int, _Question] = {}
        self._last = 0

    async def answered(
        self,
        kind: str,
        fields: dict[str, Any],
        columns: Sequence[Column] = (),
        claim: Claim | None = None,
    ) -> dict[str, Any]:
        """What is answered to a message.

        Args:
            kind: of the message, as for the next two.
            fields: as above.
            columns: as above.
            claim: given back when the answer comes, if not before.

        Raises:
            EngineDeadError: `end` was called meanwhile.
            RequestError: or another refusal, as the answer has it.
        """
        self._last += 1
        call = self._last
        answer = asyncio.get_running_loop().create_future()
        self._questions[call] = _Question(answer, claim)
        self._send(Message(kind, {**fields, "call": call}, columns))
        try:
            return await answer
        finally:
            self._questions.pop(call, None)

    def take(self, told: dict[str, Any]) -> None:
        """Hands an answer over, if anybody waits for it."""
        question = self._questions.pop(told["call"], None)
        if question is None:
            return
        if question.claim is not None:
            self._give_back(question.claim)
        if question.answer.done():  # whoever asked has gone
            return
        if "error" in told:
            question.answer.set_exception(asking.error_heard(told["error"]))
        else:
            question.answer.set_result(told)

    def end(self, text: str) -> None:
        """Tells all who wait that the engine is dead, from any thread."""
        unanswered, self._questions = self._questions, {}
        for question in unanswered.values():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop = question.answer.get_loop()
                loop.call_soon_threadsafe(_fail, question.answer, text)


def _fail(answer: asyncio.Future[dict[str, Any]], text: str) -> None:
    if not answer.done():
        answer.set_exception(EngineDeadError(text))
