"""What calls borrow: pages at the end of the KV array, while they run."""

from typing import Literal, Protocol, runtime_checkable

type BorrowingCall = Literal["extend", "decode", "score", "pool", "beams"]
"""The programs that run all layers."""


@runtime_checkable
class Borrowing(Protocol):
    """How much of the KV array each call overwrites.

    A device runs launches in order, so that a page is lent to one launch and holds keys
    and values again in the next.
    """

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        """How many of the array's last pages.

        Args:
            call: which program; the tokens of "decode" are its rows, those of "beams"
                the beams of a search.
            num_tokens: of the call, padding included. More tokens borrow no less.
        """
        ...


class _Nothing:
    """Arrays of a step stand beside the KV array."""

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        """None."""
        del call, num_tokens
        return 0


NOTHING_BORROWED: Borrowing = _Nothing()
"""On a CPU, and where no one call runs all layers."""
