"""Texts made token ids beside everything else, and refused first if they cannot fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdjax.errors import RequestError
from fdjax.serve.lanes import Lanes, finished
from fdjax.serve.tokenizer import Tokenizer, tokenised

MAX_BYTES_PER_TOKEN = 16
"""Of a text as long as the model allows. Prose has 2 to 9, whatever its language; but
there are tokens of 128 spaces, which would let texts of that many bytes a token in."""

# Characters, or tokens. A megabyte takes two seconds: so many are done in 0.1.
_QUICK_SIZE = 2**16
_QUICK_THREADS = _SLOW_THREADS = 2


@dataclass(frozen=True)
class TextLimit:
    """The longest text that may be tokenised.

    Attributes:
        max_model_len: longest sequence, in tokens.
        bytes_per_token: more than a text of so many tokens has on average.
    """

    max_model_len: int
    bytes_per_token: int

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        max_bytes_per_token: int = MAX_BYTES_PER_TOKEN,
    ) -> "TextLimit":
        """By the longest token, or less where that one is no measure of texts."""
        longest = tokenizer.longest_token_bytes
        return cls(max_model_len, min(longest, max_bytes_per_token))

    @property
    def num_bytes(self) -> int:
        """Of the longest text."""
        return self.max_model_len * self.bytes_per_token

    def check(self, texts: Sequence[str], what: str) -> None:
        """Refuses what can be no part of a sequence, in constant time a text.

        Args:
            texts: that stand in one sequence.
            what: they are, for the message.

        Raises:
            RequestError: together they have too many bytes.
        """
        # A character has a byte or more: what is far too long is not encoded.
        size = sum(map(len, texts))
        if size <= self.num_bytes:
            size = sum(len(text.encode(errors="replace")) for text in texts)
        if size > self.num_bytes:
            raise RequestError(
                f"{what} has at least {size} bytes, but max_model_len is "
                f"{self.max_model_len} tokens, {self.bytes_per_token} bytes each at "
                f"most: {self.num_bytes} in all; shorten it, or raise max_model_len or "
                "max_bytes_per_token"
            )


class Texts:
    """Texts to token ids and back, for tasks of asyncio.

    A bounded number of threads does it, where short texts never wait for long ones, and
    owners take turns.

    Args:
        tokenizer: may be used by several threads.
        limit: of a text; there is none by default.
    """

    def __init__(self, tokenizer: Tokenizer, limit: TextLimit | None = None) -> None:
        self._tokenizer = tokenizer
        self._limit = limit
        self._lanes = Lanes("fdjax-text", quick=_QUICK_THREADS, slow=_SLOW_THREADS)

    def check(self, texts: Sequence[str], what: str) -> None:
        """See `TextLimit.check`."""
        if self._limit is not None:
            self._limit.check(texts, what)

    async def encode(
        self, text: str, what: str, *, plain: bool = False, owner: str = ""
    ) -> list[int]:
        """The token ids of a text.

        Args:
            text: any.
            what: it is, for messages.
            plain: as it stands, without the special tokens a prompt begins with.
            owner: whose it is; owners take turns.

        Raises:
            RequestError: it is too long, or the tokenizer fails on it.
            EngineDeadError: this was closed.
        """
        self.check([text], what)
        encode = self._tokenizer.encode_plain if plain else self._tokenizer.encode
        return await self._run(len(text), lambda: tokenised(encode, text, what), owner)

    async def decode(self, token_ids: Sequence[int], *, owner: str = "") -> str:
        """The text of token ids, special tokens left out."""
        return await self._run(
            len(token_ids), lambda: self._tokenizer.decode(token_ids), owner
        )

    def close(self) -> None:
        """Begins nothing more; whoever waits for what was not begun is told."""
        self._lanes.close()

    async def _run[T](self, size: int, work: Callable[[], T], owner: str) -> T:
        lane = self._lanes.quick if size <= _QUICK_SIZE else self._lanes.slow
        return await finished(lane, work, owner=owner, size=size)
