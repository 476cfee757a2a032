"""The part of `decode_attention` in tables of measurements: which blocks serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdjax.kernels.tuning.files import integer
from fdjax.kernels.tuning.parts import Part

_MOST = 2**31 - 1


@dataclass(frozen=True)
class Blocks:
    """From where on larger blocks, and blocks of several heads, are faster.

    The defaults are measurements of an H200.

    Attributes:
        long_from: rows whose page tables have room for so many tokens count as long,
            and take blocks of 16 warps.
        long_from_if_two_fill: the same where two such blocks for each row and key/value
            head fill the SMs.
        blocks_two_an_sm: blocks of 8 warps that the grid has where two of them fit an
            SM. 264 would fit; but 256 rows of 1,024 tokens take 246.2 us with 256
            blocks, and 250.3 with 264, of which 8 have nothing to do.
    """

    long_from: int = 8192
    long_from_if_two_fill: int = 1500
    blocks_two_an_sm: int = 256

    def long_tokens(self, *, two_fill: bool) -> int:
        """Tokens from which on a row counts as long."""
        return self.long_from_if_two_fill if two_fill else self.long_from


def _blocks(part: Mapping[str, Any]) -> Blocks:
    longest = integer(part, "long_from", 1, _MOST)
    return Blocks(
        longest,
        integer(part, "long_from_if_two_fill", 1, longest),
        integer(part, "blocks_two_an_sm", 1, _MOST),
    )


PART = Part("decode_attention", frozenset(vars(Blocks())), _blocks, Blocks())
