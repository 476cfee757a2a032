"""A conversation: its turns, what of them still fits, and the answers."""

import dataclasses
import difflib
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from fdjax.cli import progress
from fdjax.cli.errors import show_error
from fdjax.cli.options import SamplingOptions
from fdjax.cli.results import Stopwatch
from fdjax.cli.writer import emit
from fdjax.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from collections.abc import Generator

    from fdjax.serve.llm import LLM
    from fdjax.serve.outputs import Chunk

type Message = dict[str, str]

SETTABLE = (
    "max_tokens",
    "stop",
    *(field.name for field in dataclasses.fields(SamplingOptions)),
)
"""The arguments of `SamplingParams` that may change between answers."""


class Conversation:
    """Keeps the turns so far and continues them.

    Args:
        llm: the model.
        sampling: arguments of `SamplingParams`, a seed among them: answer `i` draws
            with the seed plus `i`.
        system: what stands before all turns.

    Attributes:
        system: what stands before all turns from now on.

    Raises:
        ConfigError: the model has no tokenizer.
    """

    def __init__(
        self, llm: "LLM", sampling: dict[str, Any], *, system: str | None
    ) -> None:
        from fdjax.serve.chat_template import ChatTemplate

        if llm.tokenizer is None:
            raise ConfigError(
                f"{llm.folder} has no tokenizer, and a chat is text; add its "
                "tokenizer.json, or use fdjax generate --prompt-ids"
            )
        self._llm = llm
        self._template = ChatTemplate(llm.folder)
        self._tokenizer = llm.tokenizer
        self._began_with = dict(sampling)
        self._sampling = dict(sampling)
        self.system = system
        self._turns: list[Message] = []
        self._num_answers = 0

    @property
    def turns(self) -> tuple[Message, ...]:
        """Messages of the user and the model that are still remembered."""
        return tuple(self._turns)

    @property
    def messages(self) -> list[Message]:
        """The turns, and before them the system's message."""
        return [*self._preface(), *self._turns]

    @property
    def model(self) -> str:
        """Where the model is."""
        return str(self._llm.folder)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments of `SamplingParams` for the next answer."""
        return dict(self._sampling)

    def choose(self, name: str, value: Any) -> None:
        """Sets an argument of `SamplingParams` for the answers to come.

        Args:
            name: of the argument.
            value: `None` takes what the conversation began with.

        Raises:
            RequestError: there is no such argument, or the value is out of range; the
                arguments stay as they were.
        """
        from fdjax.generate.params import SamplingParams

        if name not in SETTABLE:
            near = difflib.get_close_matches(name, SETTABLE, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RequestError(f"{name!r} is none of {', '.join(SETTABLE)}{hint}")
        chosen = dict(self._sampling)
        chosen.pop(name, None)
        if value is not None:
            chosen[name] = value
        elif name in self._began_with:
            chosen[name] = self._began_with[name]
        SamplingParams(**chosen)
        self._sampling = chosen

    def reset(self) -> None:
        """Forgets all turns."""
        self._turns.clear()

    def answer(self, text: str) -> None:
        """Answers a message on stdout; Ctrl-C ends the answer, which is kept as is.

        A message too long even for an empty conversation is refused: the turns stay
        as they were.
        """
        self._turns.append(_message("user", text))
        prompt = self._fitting_prompt()
        if prompt is None:
            self._turns.pop()
            return
        answer = self._stream(prompt)
        self._turns.append(_message("assistant", answer))

    def _fitting_prompt(self) -> list[int] | None:
        """Token ids of the conversation, after dropping what does not fit."""
        limit = self._llm.engine.plan.max_model_len
        turns = list(self._turns)
        dropped = 0
        while len(ids := self._encode(turns)) >= limit:
            if len(turns) == 1:
                show_error(
                    f"this message makes {len(ids)} tokens, but max_model_len is "
                    f"{limit} and must leave room for an answer; shorten it or raise "
                    "--max-model-len"
                )
                return None
            del turns[:2]  # a question and its answer
            dropped += 1
        if dropped:
            progress.note(
                f"[the conversation outgrew {limit} tokens: {dropped} oldest "
                f"{'turn was' if dropped == 1 else 'turns were'} dropped]"
            )
        self._turns = turns
        return ids

    def _preface(self) -> list[Message]:
        return [] if self.system is None else [_message("system", self.system)]

    def _encode(self, turns: list[Message]) -> list[int]:
        from fdjax.serve.tokenizer import tokenised

        chat = self._template.render([*self._preface(), *turns])
        encode = self._tokenizer.encode_plain if chat.plain else self._tokenizer.encode
        return tokenised(encode, chat.text, "the conversation")

    def _stream(self, prompt: list[int]) -> str:
        """Shows the answer as it comes, and how fast; returns what was shown of it."""
        from fdjax.generate.params import SamplingParams

        seed = self._sampling["seed"] + self._num_answers
        self._num_answers += 1
        params = SamplingParams(**{**self._sampling, "seed": seed})
        chunks = cast("Generator[Chunk]", self._llm.stream([prompt], params))
        shown, watch = "", Stopwatch()
        with closing(chunks):  # gives the pages back when the answer is stopped
            try:
                with progress.Waiting("thinking") as waiting:
                    for chunk in watch.watch(chunks):
                        waiting.end()
                        shown += chunk.text or ""
                        emit(chunk.text or "")
                        if chunk.failure is not None:
                            show_error(chunk.failure.message)
            except KeyboardInterrupt:
                progress.note("\n[stopped]")
        emit("\n")
        if sys.stdin.isatty():
            progress.note(f"[{watch.pace()}]")
        return shown


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
