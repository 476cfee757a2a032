"""Stop strings of beams: a search must know where the text of each ends."""

from collections.abc import Sequence

import numpy as np

from fdjax.engine.matcher import Grammar, Matcher
from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.stopping import FinishReason
from fdjax.serve.stop_strings import StopStrings
from fdjax.serve.text_stream import TextStream
from fdjax.serve.tokenizer import Tokenizer

# A mask of one word stands for one of any number of the same.
_ALL = np.full(1, 2**32 - 1, np.uint32)


class StoppedTexts:
    """A `Grammar` of texts that end with a stop string, and may have a form beside.

    Args:
        tokenizer: of the model.
        prompt: token ids that come before.
        params: of the search.
        grammar: of the form.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        params: BeamSearchParams,
        grammar: Grammar | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._params = params
        self._grammar = grammar

    def matcher(self) -> "StopMatcher":
        """See `fdjax.engine.matcher.Grammar.matcher`."""
        params = self._params
        stream = self._tokenizer.stream(
            self._prompt, skip_special_tokens=params.skip_special_tokens
        )
        return StopMatcher(
            stream,
            StopStrings(params.stop, included=False),
            None if self._grammar is None else self._grammar.matcher(),
            num_unsearched=params.min_tokens,
        )


class StopMatcher:
    """See `fdjax.engine.matcher.Matcher`; finds what a `Detokenizer` would.

    Args:
        stream: makes text of tokens.
        stops: looks for strings in it.
        form: of the output; `None` lets it be anything.
        num_unsearched: tokens in whose text nothing is looked for.
    """

    def __init__(
        self,
        stream: TextStream,
        stops: StopStrings,
        form: Matcher | None,
        *,
        num_unsearched: int,
    ) -> None:
        self._stream = stream
        self._stops = stops
        self._form = form
        self._num_unsearched = num_unsearched

    @property
    def is_ready(self) -> bool:
        """See `fdjax.engine.matcher.Matcher.is_ready`."""
        return self._form is None or self._form.is_ready

    @property
    def finish_reason(self) -> FinishReason:
        """See `fdjax.engine.matcher.Matcher.finish_reason`."""
        if self._stops.found is not None:
            return FinishReason.STOP
        return FinishReason.RUNNING if self._form is None else self._form.finish_reason

    def mask(self) -> np.ndarray:
        """See `fdjax.engine.matcher.Matcher.mask`."""
        return _ALL if self._form is None else self._form.mask()

    def advance(self, token_id: int) -> None:
        """See `fdjax.engine.matcher.Matcher.advance`."""
        piece = self._stream(token_id)
        if self._num_unsearched:
            self._num_unsearched -= 1
        else:
            self._stops.add(piece)
        if self._form is not None:
            self._form.advance(token_id)

    def fork(self) -> "StopMatcher":
        """See `fdjax.engine.matcher.Matcher.fork`."""
        return StopMatcher(
            self._stream.fork(),
            self._stops.fork(),
            None if self._form is None else self._form.fork(),
            num_unsearched=self._num_unsearched,
        )


def judging(
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    params: BeamSearchParams,
    grammar: Grammar | None,
) -> Grammar | None:
    """What judges the texts of a search; `None` where nothing of them matters.

    Args:
        tokenizer: of the model.
        prompt: token ids.
        params: of the search.
        grammar: of its form, if it has one.

    Raises:
        RequestError: there are stop strings, but no tokenizer.
    """
    if not params.stop:
        return grammar
    if tokenizer is None:
        raise RequestError(
            f"stop has {len(params.stop)} strings, but the model has no tokenizer; "
            "use stop_token_ids"
        )
    return StoppedTexts(tokenizer, prompt, params, grammar)
