"""The three activation buffers of a program, assigned from lifetimes.

FlashDecoding++Next, section V: a step needs the residual stream `[S, E]`, a second
buffer `[S, E]`, and a third as wide as the widest thing beside them; results of one
layer lie where those of the last have been.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fdjax.models.program.instructions import Instruction, Program, Value

type BufferName = Literal[1, 2, 3]


@dataclass(frozen=True)
class Place:
    """Where the rows of a value lie: these columns of a buffer, at any row.

    Attributes:
        buffer: which.
        first: the first column, counted in columns of one row: a value of `columns`
            whose `first` is `c` lies `S * c` elements from the buffer's beginning.
        columns: of the value.
    """

    buffer: BufferName
    first: int
    columns: int

    def overlaps(self, other: "Place") -> bool:
        """Whether they have an element in common."""
        return (
            self.buffer == other.buffer
            and self.first < other.first + other.columns
            and other.first < self.first + self.columns
        )


@dataclass(frozen=True)
class Buffers:
    """Where every value of a program lies.

    Attributes:
        places: by the index of the value.
        widths: columns of the three buffers.
    """

    places: tuple[Place, ...]
    widths: tuple[int, int, int]

    @property
    def columns(self) -> int:
        """Elements a token, of all buffers."""
        return sum(self.widths)


@functools.lru_cache(16)  # a program is lowered for dozens of sizes
def assign(program: Program) -> Buffers:
    """Gives every value a place that no other value needs at the same time.

    A value takes the place of one that its instruction may overwrite, if that is in the
    first two buffers; else the first of these that is free; else the lowest columns of
    the third that are, which becomes as wide as is needed.
    """
    last_use = _last_uses(program)
    places: dict[int, Place] = {}
    for step, instruction in enumerate(program.instructions):
        for value in instruction.writes:
            taken = [
                places[other.index]
                for other in program.values
                if other.index in places and last_use[other.index] >= step
            ]
            mine = _overwritable(instruction, value, places, last_use, step)
            free = [place for place in mine if taken.count(place) == 1]
            places[value.index] = _choose(program.hidden_size, value, taken, free)
    ordered = tuple(places[value.index] for value in program.values)
    ends = [place.first + place.columns for place in ordered if place.buffer == 3]
    return Buffers(ordered, (program.hidden_size, program.hidden_size, max(ends)))


def _last_uses(program: Program) -> dict[int, int]:
    """The last instruction that reads or writes each value."""
    return {
        value.index: step
        for step, instruction in enumerate(program.instructions)
        for value in (*instruction.writes, *instruction.reads)
    }


def _overwritable(
    instruction: Instruction,
    value: Value,
    places: dict[int, Place],
    last_use: dict[int, int],
    step: int,
) -> Iterator[Place]:
    """Places of operands that nobody reads afterwards."""
    for operand in instruction.overwrites:
        if last_use[operand.index] == step and operand.columns == value.columns:
            yield places[operand.index]


def _choose(
    hidden_size: int, value: Value, taken: list[Place], overwritable: list[Place]
) -> Place:
    for place in overwritable:
        if place.buffer != 3:
            return place
    names: tuple[BufferName, ...] = (1, 2) if value.columns <= hidden_size else ()
    for buffer in names:
        place = Place(buffer, 0, value.columns)
        if not any(map(place.overlaps, taken)):
            return place
    if overwritable:
        return overwritable[0]
    ends = [place.first + place.columns for place in taken if place.buffer == 3]
    every = (Place(3, first, value.columns) for first in sorted([0, *ends]))
    return next(place for place in every if not any(map(place.overlaps, taken)))
