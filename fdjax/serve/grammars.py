"""Grammars of structured outputs in a model's tokens, through llguidance."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import re
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fdjax.errors import RequestError, to_install
from fdjax.generate.masks import allowed_bits
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import FIELD, StructuredOutputs
from fdjax.serve.forks import ExhaustedError
from fdjax.serve.grammar_trial import (
    SECONDS,
    TRIAL_SECONDS,
    GrammarTrial,
    limits,
    readable,
)
from fdjax.serve.lanes import Lanes
from fdjax.serve.token_grammar import EndBits, TokenGrammar, what_follows
from fdjax.serve.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

# White space takes tokens that nobody reads, and where it has no end, some models find
# none. A schema may ask for it.
_JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_flexible": False}
# Of each lane, for compiling and for masks.
_QUICK_THREADS = 4
_SLOW_THREADS = 2


class Grammars:
    """Makes grammars for requests to one model; any thread may use it.

    Args:
        tokenizer: of the model; without one, structured outputs are refused.
        vocab_size: tokens of the model.
        eos_token_ids: the model's own end-of-sequence tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._lock = threading.Lock()
        self._trial = GrammarTrial()
        self._compiling = _lanes("fdjax-grammar")
        self._masking = _lanes("fdjax-mask")

    def prepare(self) -> None:
        """Does ahead, on a thread, what the first grammar would wait for.

        What fails there fails again for the request that needs it.
        """
        self._compiling.quick.submit(self._trial.start)
        self._compiling.quick.submit(self._loaded_tokens)

    async def compiled(
        self, params: SamplingParams, *, owner: str = ""
    ) -> TokenGrammar | None:
        """`compile` for tasks of asyncio; quick grammars do not wait for slow ones.

        They wait in the order of `FairOrder` for each of their trials.

        Args:
            params: of the request.
            owner: whose request it is.
        """
        since = time.monotonic()
        for seconds in TRIAL_SECONDS:
            compiling = functools.partial(
                self.compile, params, cpu_seconds=seconds, owner=owner
            )
            is_first = seconds == TRIAL_SECONDS[0]
            lane = self._compiling.quick if is_first else self._compiling.slow
            future = lane.submit(compiling, owner=owner, rank=seconds, since=since)
            with contextlib.suppress(ExhaustedError):
                return await asyncio.wrap_future(future)
        raise AssertionError("the last trial says what is wrong")

    def compile(
        self,
        params: SamplingParams,
        *,
        cpu_seconds: float = SECONDS,
        owner: str = "",
    ) -> TokenGrammar | None:
        """The grammar that a request asks for, if it asks for one.

        Args:
            params: of the request.
            cpu_seconds: see `GrammarTrial.check`.
            owner: whose request it is; those of one share the time for masks.

        Raises:
            RequestError: it is wrong or takes too much, or the model has no tokenizer.
            ExhaustedError: see `GrammarTrial.check`.
        """
        wanted = params.structured_outputs
        if wanted is None:
            return None
        try:
            if (grammar := wanted.grammar) is not None and "::=" in grammar:
                lark = self._trial.lark(grammar, cpu_seconds=cpu_seconds)
                wanted = dataclasses.replace(wanted, grammar=lark)
            text = self._following(_source(wanted), wanted.after)
            self._trial.check(_without_ids(text), cpu_seconds=cpu_seconds)
            return self._compiled(text, params, owner)
        except ValueError as error:
            raise RequestError(f"{FIELD}: {error}") from error
        except ImportError as error:
            raise RequestError(
                f"{FIELD} need the package {error.name}; {to_install('serve')}"
            ) from error

    def _following(self, text: str, after: str | None) -> str:
        """The grammar of any text up to `after`, and then of the one given."""
        if after is None:
            return text
        ids = [] if self._tokenizer is None else self._tokenizer.encode_plain(after)
        if len(ids) == 1:  # a token, which no text is
            first = f"first: /(?s:.*)/ <[{ids[0]}]>"
        else:
            first = f"first[suffix={json.dumps(after)}]: /(?s:.*)/"
        # White space between them is of neither.
        lark = f"start: first /[ \\n]{{0,4}}/ @then\n{first}"
        form = {"lark_grammar": text}
        if text.startswith('{"grammars"'):
            (form,) = json.loads(text)["grammars"]
        both = [{"name": "all", "lark_grammar": lark}, {**form, "name": "then"}]
        return json.dumps({"grammars": both})

    def _compiled(self, text: str, params: SamplingParams, owner: str) -> TokenGrammar:
        from llguidance import LLMatcher

        tokens = self._loaded_tokens()
        matcher = LLMatcher(tokens, text, log_level=0, limits=limits())
        special = [t for t in params.stop_token_ids if tokens.is_special_token(t)]
        bits = EndBits(
            text=~self._bits(tokens.eos_tokens),
            ends=self._bits([*special, *(() if params.ignore_eos else self._eos)]),
        )
        following = what_follows(matcher, bits)
        if matcher.is_error():
            raise RequestError(readable(matcher.get_error()))
        if following[0] is None:
            raise RequestError("no token of the model may begin it; ask for some text")
        return TokenGrammar(matcher, bits, following, self._masking, owner)

    def _loaded_tokens(self) -> "LLTokenizer":
        with self._lock:
            return self._tokens

    @functools.cached_property
    def _tokens(self) -> "LLTokenizer":
        """The model's tokens as bytes; takes a second where there are 100,000."""
        from llguidance import LLTokenizer

        text = None if self._tokenizer is None else self._tokenizer.to_json()
        if text is None:
            raise RequestError("the model has no tokenizer that can be read as bytes")
        eos = list(self._eos) or None
        try:
            return LLTokenizer(text, n_vocab=self._vocab_size, eos_token=eos)
        except ValueError:  # it has more tokens than the model, which are never made
            return LLTokenizer(text, eos_token=eos)

    def _bits(self, tokens: Iterable[int]) -> np.ndarray:
        known = [token for token in tokens if token < self._vocab_size]
        return allowed_bits(known, vocab_size=self._vocab_size)


def _lanes(name: str) -> Lanes:
    return Lanes(name, quick=_QUICK_THREADS, slow=_SLOW_THREADS)


def _without_ids(text: str) -> str:
    """The same for a trial, which has no tokens of the model: any id is as good."""
    return re.sub(r"<\[\d{1,9}\]>", "<[0]>", text)


def _source(wanted: StructuredOutputs) -> str:
    """The grammar in llguidance's format."""
    from llguidance import LLMatcher, grammar_from

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(wanted.grammar)
    if wanted.choice is not None:
        return grammar_from("choice", json.dumps(wanted.choice))
    schema = '{"type": "object"}' if wanted.json is None else str(wanted.json)
    return LLMatcher.grammar_from_json_schema(schema, _JSON_OPTIONS)
