"""What launches read and write: where operands lie, as `encode` tells the handler.

`ffi/layer_program/reader.h` reads it, and checks each against the region it lies in.
"""

import enum
from dataclasses import dataclass

from fdjax.kernels import ffi

ABSENT = -1
"""What stands for an operand that is not there."""

OFFSET_BITS = ffi.limit("layer_program", "offset_bits")
"""Of an operand: what stands above them says in which region it lies."""


class Region(enum.IntEnum):
    """What operands lie in; the first array of the parameters is the last of these."""

    FIRST = 0
    SECOND = 1
    THIRD = 2
    SCRATCH = 3
    HIDDEN = 4
    WEIGHTS = 5


@dataclass(frozen=True)
class Operand:
    """Where rows of activations, or an array of the parameters, begin.

    Attributes:
        region: a `Region`; `WEIGHTS + i` is the `i`-th array of the parameters.
        offset: elements from the region's beginning.
    """

    region: int
    offset: int = 0

    @property
    def number(self) -> int:
        """As the handler is told it."""
        return self.region << OFFSET_BITS | self.offset


@dataclass(frozen=True)
class WeightOperand:
    """Where a `fdjax.kernels.weight.Weight` is.

    Attributes:
        format: its place among `fdjax.kernels.weight.FORMATS`.
        arrays: where each of its arrays begins, in the order of its fields.
    """

    format: int
    arrays: tuple[Operand, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """As the handler is told it."""
        return self.format, *(one.number for one in self.arrays)
