"""`Turns`: how one model's turns are read, and held to their form."""

import secrets
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fdjax.errors import ConfigError, RequestError
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.tokenizer import Tokenizer
from fdjax.serve.turns.call_grammar import (
    GrammarOfCalls,
    call_grammar,
    text_then_calls,
)
from fdjax.serve.turns.families import FAMILIES, HERMES, family_of
from fdjax.serve.turns.reader import TurnReader
from fdjax.serve.turns.thinking import BEGIN, END, Thinking
from fdjax.serve.turns.tool import Tool

_ALWAYS = "deepseek_r1"
REASONING = ("qwen3", _ALWAYS)
"""Words of `--reasoning-parser`: models that say that they reason, or always do."""

_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 24


@dataclass(frozen=True)
class Before:
    """What an output stands behind.

    Attributes:
        prompt: all of it.
        continued: the part of the same turn that it ends with; `None` where the output
            begins its turn.
    """

    prompt: str
    continued: str | None = None

    @property
    def is_thinking(self) -> bool:
        """It ends inside reasoning."""
        if self.continued is None:
            return self.prompt.rstrip().endswith(BEGIN)
        return self.continued.rfind(BEGIN) > self.continued.rfind(END)


class Turns:
    """What a server knows of its model's turns.

    Args:
        tokenizer: of the model.
        template: the text of its chat template; empty where it has none.
        tool_call_parser: one of `FAMILIES`; found from the template by default.
        reasoning_parser: one of `REASONING`; without one, reasoning is content.

    Attributes:
        calls_are_known: calls can be found in what the model says of itself.
        splits_reasoning: answers are read for reasoning.

    Raises:
        ConfigError: there is no such parser.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: str = "",
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        _check_word("tool-call parser", tool_call_parser, FAMILIES)
        _check_word("reasoning parser", reasoning_parser, REASONING)
        self._reasoning = reasoning_parser
        self.splits_reasoning = reasoning_parser is not None
        family = family_of(template, tool_call_parser)
        self.calls_are_known = family is not None
        self._family = family or HERMES
        thinking = (BEGIN, END) if self.splits_reasoning else ()
        self._tokens = _tokens(tokenizer, (*self._family.markers, *thinking))
        self._markers = {
            token: marker
            for marker, token in self._tokens.items()
            if not tokenizer.decode([token])
        }

    def reader(
        self, before: Before, tools: Sequence[Tool], *, parallel: bool
    ) -> TurnReader:
        """What reads one output.

        Args:
            before: what the output continues.
            tools: that may be called.
            parallel: see `TurnReader`.
        """
        calls = self._family.parser({tool.name for tool in tools}) if tools else None
        thinking = None
        if self.may_reason(before):
            begun = self._reasoning == _ALWAYS or before.is_thinking
            ends = self._family.before[:1] if tools else ()
            marked = [text for text in ends if text in self._family.markers]
            inside = before.continued is not None
            thinking = Thinking(begun=begun, inside=inside, ends=marked)
        return TurnReader(
            calls, thinking=thinking, markers=self._markers, parallel=parallel
        )

    def may_reason(self, before: Before) -> bool:
        """The output may begin with reasoning; a prompt can have ended it already.

        What continues a turn is reasoning only if it stands inside some.
        """
        if before.continued is not None:
            return self.splits_reasoning and before.is_thinking
        return self.splits_reasoning and not before.prompt.rstrip().endswith(END)

    def held(self, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutputs:
        """The form of an output that is calls of tools alone.

        Raises:
            RequestError: their schemas are too long or too deep; it names the field.
        """
        return self._form(call_grammar, tools, parallel=parallel)

    def held_if_called(
        self, tools: Sequence[Tool], *, parallel: bool
    ) -> StructuredOutputs | None:
        """The form of any text that may end with calls; `None` where none need be held.

        That is where no tool is strict, or calls look like other texts.

        Raises:
            RequestError: see `held`.
        """
        if self._family.marker is None or not any(tool.strict for tool in tools):
            return None
        return self._form(text_then_calls, tools, parallel=parallel)

    def _form(
        self, grammar: GrammarOfCalls, tools: Sequence[Tool], *, parallel: bool
    ) -> StructuredOutputs:
        for tool in tools:
            try:
                StructuredOutputs(json=tool.held_schema)
            except RequestError as error:
                raise RequestError(
                    f"tools: parameters of {tool.name}: {error}"
                ) from error
        text = grammar(self._family, tools, self._tokens, parallel=parallel)
        try:
            return StructuredOutputs(grammar=text)
        except RequestError as error:
            raise RequestError(
                f"tools: all that may be called, together: {error}; name one of them "
                "in tool_choice, or leave that to the model without strict"
            ) from error

    def new_id(self) -> str:
        """For a call; Mistral's templates want nine letters and digits."""
        return new_call_id(self._family.id_length)


def new_call_id(length: int | None = None) -> str:
    """Made up: of so many letters and digits, or as OpenAI's look."""
    letters = (secrets.choice(_LETTERS) for _ in range(length or _ID_LENGTH))
    return ("" if length else "call_") + "".join(letters)


def _check_word(what: str, word: str | None, words: Collection[str]) -> None:
    if word is not None and word not in words:
        raise ConfigError(f"there is no {what} {word!r}; use one of {', '.join(words)}")


def _tokens(tokenizer: Tokenizer, markers: Sequence[str]) -> dict[str, int]:
    """Those that are one token."""
    ids = {marker: tokenizer.encode_plain(marker) for marker in markers}
    return {marker: found[0] for marker, found in ids.items() if len(found) == 1}
