"""Grammars of structured outputs in a model's tokens, through llguidance."""

import functools
import json
import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fdjax.errors import RequestError
from fdjax.generate.masks import num_words
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.generate.structured import FIELD, StructuredOutputs
from fdjax.serve.grammar_trial import GrammarTrial, limits
from fdjax.serve.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_LOGGER = logging.getLogger(__name__)

# What JSON is laid out with. If white space had no end, neither would some models.
_JSON_OPTIONS: "JsonCompileOptions" = {
    "whitespace_pattern": r"\x20|\x0D?\x0A[\x20\x09]{0,32}"
}
_COMPILING_THREADS = 2
_MASKING_THREADS = 4

# What may come next, and FinishReason.RUNNING; or nothing, and why.
type _Next = tuple[np.ndarray | None, FinishReason]


@dataclass(frozen=True)
class _Ends:
    """Bits of tokens.

    Attributes:
        text: all but the model's end-of-sequence tokens.
        ends: tokens that end this request, where its text may end.
    """

    text: np.ndarray
    ends: np.ndarray


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
        self._compiling = ThreadPoolExecutor(_COMPILING_THREADS, "fdjax-grammar")
        self._masking = ThreadPoolExecutor(_MASKING_THREADS, "fdjax-mask")

    def prepare(self) -> None:
        """Does ahead, on a thread, what the first grammar would wait for.

        What fails there fails again for the request that needs it.
        """
        self._compiling.submit(self._trial.start)
        self._compiling.submit(self._loaded_tokens)

    def submit(self, params: SamplingParams) -> "Future[TokenGrammar | None]":
        """`compile` on a thread of its own."""
        return self._compiling.submit(self.compile, params)

    def compile(self, params: SamplingParams) -> "TokenGrammar | None":
        """The grammar that a request asks for, if it asks for one.

        Raises:
            RequestError: it is wrong or takes too much, or the model has no tokenizer.
        """
        wanted = params.structured_outputs
        if wanted is None:
            return None
        try:
            text = _source(wanted)
            self._trial.check(text)
            return self._compiled(text, params)
        except ValueError as error:
            raise RequestError(f"{FIELD}: {error}") from error
        except ImportError as error:
            raise RequestError(
                f"{FIELD} need the package {error.name}: install fdjax[serve]"
            ) from error

    def _compiled(self, text: str, params: SamplingParams) -> "TokenGrammar":
        from llguidance import LLMatcher

        tokens = self._loaded_tokens()
        matcher = LLMatcher(tokens, text, log_level=0, limits=limits())
        special = [t for t in params.stop_token_ids if tokens.is_special_token(t)]
        bits = _Ends(
            text=~self._bits(tokens.eos_tokens),
            ends=self._bits([*special, *(() if params.ignore_eos else self._eos)]),
        )
        following = _following(matcher, bits)
        if matcher.is_error():
            raise RequestError(matcher.get_error())
        if following[0] is None:
            raise RequestError("no token of the model may begin it; ask for some text")
        return TokenGrammar(matcher, bits, following, self._masking)

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
        bits = np.zeros(num_words(self._vocab_size) * 32, np.uint8)
        bits[[token for token in tokens if token < self._vocab_size]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)


class TokenGrammar:
    """See `fdjax.engine.matcher.Grammar`.

    Args:
        matcher: at the beginning; it stays there.
        bits: of tokens that end a text.
        following: what comes first.
        pool: where masks are made.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        bits: _Ends,
        following: _Next,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.start = matcher
        self.bits = bits
        self.following = following
        self.pool = pool

    def matcher(self) -> "TokenMatcher":
        """See `fdjax.engine.matcher.Grammar.matcher`."""
        return TokenMatcher(self)


class TokenMatcher:
    """See `fdjax.engine.matcher.Matcher`."""

    def __init__(self, grammar: TokenGrammar) -> None:
        self._grammar = grammar
        self._matcher: LLMatcher | None = None
        self._next: Future[_Next] = Future()
        self._next.set_result(grammar.following)

    @property
    def is_ready(self) -> bool:
        """See `fdjax.engine.matcher.Matcher.is_ready`."""
        return self._next.done()

    @property
    def finish_reason(self) -> FinishReason:
        """See `fdjax.engine.matcher.Matcher.finish_reason`."""
        return self._next.result()[1]

    def mask(self) -> np.ndarray:
        """See `fdjax.engine.matcher.Matcher.mask`."""
        mask = self._next.result()[0]
        assert mask is not None, "the output has ended"
        return mask

    def advance(self, token_id: int) -> None:
        """See `fdjax.engine.matcher.Matcher.advance`."""
        self._next = self._grammar.pool.submit(self._advanced, token_id)

    def _advanced(self, token_id: int) -> _Next:
        try:
            if self._matcher is None:  # copying may take milliseconds: not earlier
                self._matcher = self._grammar.start.deep_copy()
            self._matcher.consume_token(token_id)
            return _following(self._matcher, self._grammar.bits)
        except BaseException:  # a panic of Rust is no Exception; the engine must go on
            _LOGGER.exception("a grammar's matcher has failed; its output ends there")
            return None, FinishReason.LENGTH


def _following(matcher: "LLMatcher", bits: _Ends) -> _Next:
    """What may come now. What was cut short by a limit ends like a text too long."""
    allowed = np.frombuffer(matcher.compute_bitmask(), np.uint32)
    allowed = allowed[: len(bits.text)] & bits.text
    if matcher.is_error():
        _LOGGER.warning("a grammar cannot be followed further: %s", matcher.get_error())
        return None, FinishReason.LENGTH
    accepting = matcher.is_accepting()
    if not allowed.any():
        return None, FinishReason.STOP if accepting else FinishReason.LENGTH
    return allowed | bits.ends if accepting else allowed, FinishReason.RUNNING


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
