"""Increments of one request made chunks: text, and its end at a stop string."""

import functools
from collections.abc import Iterable

from fdjax.engine.request import (
    Embedded,
    Found,
    FoundOutput,
    Increment,
    Request,
)
from fdjax.errors import RequestError
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason
from fdjax.serve.outputs import FAILURES, BestSoFar, Chunk
from fdjax.serve.stop_strings import StopStrings
from fdjax.serve.text_stream import TextStream
from fdjax.serve.tokenizer import Tokenizer
from fdjax.serve.turns.parts import Part, merged
from fdjax.serve.turns.reader import TurnReader


class Detokenizer:
    """Follows one request.

    Args:
        tokenizer: without one there is no text.
        request: whose increments come.
        sample: which of its prompt's samples it is.
        request_id: of its prompt's request, for the chunks.
        reader: finds the parts of an assistant's turn in the text; then stop strings
            are looked for in its content alone.

    Attributes:
        request_id: as above.
        ended: the last chunk was made. The engine knows nothing of a stop string:
            whoever reads the chunks aborts the request there.

    Raises:
        RequestError: there are stop strings, but no tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        request: Request,
        *,
        sample: int = 0,
        request_id: str | None = None,
        reader: TurnReader | None = None,
    ) -> None:
        params = request.params
        self._sample = sample
        self.request_id = request_id
        self._reader = reader
        self._parts: list[Part] = []
        if tokenizer is None and params.stop:
            raise RequestError(
                f"stop has {len(params.stop)} strings, but the model has no tokenizer; "
                "use stop_token_ids"
            )
        self._stream = None
        if tokenizer is not None:
            self._stream = tokenizer.stream(
                request.prompt,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
        self._tokenizer = tokenizer
        self._params = params
        self._request = request
        self._new_stops = functools.partial(
            StopStrings, params.stop, included=params.include_stop_str_in_output
        )
        self._stops = self._new_stops()
        self._num_unsearched = params.min_tokens if params.stop else 0
        self.ended = False

    def chunk(self, increment: Increment) -> Chunk:
        """The next chunk."""
        assert not self.ended
        if isinstance(increment, Found) and increment.finish_reason is None:
            return self._so_far(increment)
        token_ids, text = increment.token_ids, None
        reason = increment.finish_reason
        finish_text = None if reason is None else reason.text
        if self._stream is not None:
            count, text = self._text(increment, self._stream)
            token_ids = token_ids[:count]
            if finish_text is not None and not self._is_done:
                text += self._rest(self._stream)
        stop_reason = self._stops.found
        if self._is_done:
            finish_text = "stop"
        else:
            stop_reason = _stop_token(increment, self._params)
        self.ended = finish_text is not None
        logprobs = increment.logprobs
        parts, self._parts = self._parts, []
        return Chunk(
            index=increment.index,
            token_ids=token_ids,
            text=text,
            finish_reason=finish_text,
            logprobs=None if logprobs is None else logprobs[: len(token_ids)],
            sample=self._sample,
            stop_reason=stop_reason,
            request_id=self.request_id,
            prompt_logprobs=increment.prompt_logprobs,
            failure=FAILURES[reason] if reason and finish_text == "error" else None,
            parts=None if self._reader is None else merged(parts),
            embedding=increment.embedding if isinstance(increment, Embedded) else None,
            score=increment.score if isinstance(increment, FoundOutput) else None,
        )

    def _so_far(self, increment: Found) -> Chunk:
        """Of a search under way, whose text may be another in its next increment."""
        (best,) = increment.hypotheses
        whole = Increment(increment.index, best.token_ids, None, FinishReason.LENGTH)
        text = Detokenizer(self._tokenizer, self._request).chunk(whole).text
        return Chunk(
            index=increment.index,
            token_ids=[],
            text=None if text is None else "",
            finish_reason=None,
            sample=self._sample,
            request_id=self.request_id,
            best=BestSoFar(best.token_ids, text, best.score),
        )

    @property
    def _is_done(self) -> bool:
        """The text has ended, whether or not the engine knows it."""
        is_read = self._reader is not None and self._reader.done
        return is_read or self._stops.found is not None

    def _text(self, increment: Increment, stream: TextStream) -> tuple[int, str]:
        """Content of the tokens up to the text's end, and how many these are.

        A token that ends the output is no text, unless that is asked for.
        """
        text, num_text = "", len(increment.token_ids) - self._ends_untold(increment)
        for count, token in enumerate(increment.token_ids, start=1):
            if count <= num_text:
                text += self._content(self._piece(token, stream))
            self._num_unsearched = max(self._num_unsearched - 1, 0)
            if self._is_done:
                return count, text
        return len(increment.token_ids), text

    def _ends_untold(self, increment: Increment) -> bool:
        """The last token ends the output and is no text.

        The model's own end is special, and so no text unless special tokens are.
        """
        params = self._params
        if increment.finish_reason != FinishReason.STOP or not increment.token_ids:
            return False
        named = _stop_token(increment, params) is not None
        ends = named or self._is_shown_end(increment.token_ids[-1])
        return ends and not params.include_stop_str_in_output

    def _is_shown_end(self, token: int) -> bool:
        """It is special, and would be text; a grammar may end with any other token."""
        tokenizer, is_shown = self._tokenizer, not self._params.skip_special_tokens
        return is_shown and tokenizer is not None and not tokenizer.decode([token])

    def _piece(self, token: int, stream: TextStream) -> str:
        marker = None if self._reader is None else self._reader.markers.get(token)
        # A special token, which the stream would leave out.
        return stream(token) if marker is None else stream.rest() + marker

    def _content(self, piece: str) -> str:
        """Content that the next piece of text makes certain."""
        if self._reader is None:
            return self._searched(piece)
        return self._heard(self._reader.add(piece))

    def _rest(self, stream: TextStream) -> str:
        """Content that waits, as the text ends here."""
        text = self._content(stream.rest())
        if self._reader is not None and not self._is_done:
            text += self._heard(self._reader.end())
        return text + ("" if self._stops.found is not None else self._held())

    def _heard(self, parts: Iterable[Part]) -> str:
        """Notes parts of a turn, and searches what is content."""
        text = ""
        for part in parts:
            if part.kind == "content":
                said = self._searched(part.text)
                self._parts.append(Part("content", said))
            elif part.text or part.kind == "end":
                said = self._held()  # no stop string goes on after a call
                self._parts.append(part)
            else:
                continue
            text += said
            if self._stops.found is not None:
                break
        return text

    def _held(self) -> str:
        """Text that could have become a stop string, but does not."""
        held, self._stops = self._stops.rest(), self._new_stops()
        if self._reader is not None:
            self._parts.append(Part("content", held))
        return held

    def _searched(self, piece: str) -> str:
        """What the next piece of text lets through."""
        return piece if self._num_unsearched else self._stops.add(piece)


def _stop_token(increment: Increment, params: SamplingParams) -> int | None:
    """The token of `stop_token_ids` that has ended an output."""
    if increment.finish_reason != FinishReason.STOP or not increment.token_ids:
        return None
    last = increment.token_ids[-1]
    return last if last in params.stop_token_ids else None
