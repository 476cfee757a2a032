"""A conversation: its turns, what of them still fits, and the answers."""

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from fdjax.cli import progress
from fdjax.cli.errors import show_error
from fdjax.cli.writer import emit
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

    from fdjax.serve.llm import LLM
    from fdjax.serve.outputs import Chunk

type Message = dict[str, str]


class Conversation:
    """Keeps the turns so far and continues them.

    Args:
        llm: the model.
        sampling: arguments of `SamplingParams`, a seed among them: answer `i` draws
            with the seed plus `i`.
        system: what stands before all turns.

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
        self._sampling = sampling
        self._system = [] if system is None else [_message("system", system)]
        self._turns: list[Message] = []
        self._num_answers = 0

    @property
    def turns(self) -> tuple[Message, ...]:
        """Messages of the user and the model that are still remembered."""
        return tuple(self._turns)

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

    def _encode(self, turns: list[Message]) -> list[int]:
        from fdjax.serve.tokenizer import tokenised

        chat = self._template.render([*self._system, *turns])
        encode = self._tokenizer.encode_plain if chat.plain else self._tokenizer.encode
        return tokenised(encode, chat.text, "the conversation")

    def _stream(self, prompt: list[int]) -> str:
        """Shows the answer as it comes; returns what was shown of it."""
        from fdjax.generate.params import SamplingParams

        seed = self._sampling["seed"] + self._num_answers
        self._num_answers += 1
        params = SamplingParams(**{**self._sampling, "seed": seed})
        chunks = cast("Generator[Chunk]", self._llm.stream([prompt], params))
        shown = ""
        with closing(chunks):  # gives the pages back when the answer is stopped
            try:
                with progress.Waiting("thinking") as waiting:
                    for chunk in chunks:
                        waiting.end()
                        shown += chunk.text or ""
                        emit(chunk.text or "")
                        if chunk.failure is not None:
                            show_error(chunk.failure.message)
            except KeyboardInterrupt:
                progress.note("\n[stopped]")
        emit("\n")
        return shown


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
