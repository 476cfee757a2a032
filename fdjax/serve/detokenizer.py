"""Increments of one request made chunks: text, and its end at a stop string."""

from fdjax.engine.request import Increment, Request
from fdjax.errors import RequestError
from fdjax.serve.outputs import FAILURES, Chunk
from fdjax.serve.stop_strings import StopStrings
from fdjax.serve.text_stream import TextStream
from fdjax.serve.tokenizer import Tokenizer


class Detokenizer:
    """Follows one request.

    Args:
        tokenizer: without one there is no text.
        request: whose increments come.
        sample: which of its prompt's samples it is.

    Attributes:
        ended: the last chunk was made. The engine knows nothing of a stop string:
            whoever reads the chunks aborts the request there.

    Raises:
        RequestError: there are stop strings, but no tokenizer.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, request: Request, *, sample: int = 0
    ) -> None:
        params = request.params
        self._sample = sample
        if tokenizer is None and params.stop:
            raise RequestError(
                f"stop has {len(params.stop)} strings, but the model has no tokenizer; "
                "use stop_token_ids"
            )
        self._stream = None if tokenizer is None else tokenizer.stream(request.prompt)
        self._stops = StopStrings(
            params.stop, included=params.include_stop_str_in_output
        )
        self._num_unsearched = params.min_tokens if params.stop else 0
        self.ended = False

    def chunk(self, increment: Increment) -> Chunk:
        """The next chunk."""
        assert not self.ended
        token_ids, text = increment.token_ids, None
        reason = increment.finish_reason
        finish_text = None if reason is None else reason.text
        if self._stream is not None:
            count, text = self._text(token_ids, self._stream)
            token_ids = token_ids[:count]
            if finish_text is not None and not self._stops.found:
                text += self._searched(self._stream.rest()) + self._stops.rest()
        if self._stops.found:
            finish_text = "stop"
        self.ended = finish_text is not None
        logprobs = increment.logprobs
        return Chunk(
            index=increment.index,
            token_ids=token_ids,
            text=text,
            finish_reason=finish_text,
            logprobs=None if logprobs is None else logprobs[: len(token_ids)],
            sample=self._sample,
            failure=FAILURES[reason] if reason and finish_text == "error" else None,
        )

    def _text(self, token_ids: list[int], stream: TextStream) -> tuple[int, str]:
        """Text of the tokens up to a stop string, and how many these are."""
        text = ""
        for count, token in enumerate(token_ids, start=1):
            text += self._searched(stream(token))
            self._num_unsearched = max(self._num_unsearched - 1, 0)
            if self._stops.found:
                return count, text
        return len(token_ids), text

    def _searched(self, piece: str) -> str:
        """What the next piece of text lets through."""
        return piece if self._num_unsearched else self._stops.add(piece)
