"""The launches of a step, as the handler is told them: one flat array of integers.

`ffi/layer_program/chain.h` reads what `encode` writes: for each launch its code, its
numbers, and where its operands lie.
"""

import functools
import struct
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from fdjax.kernels.decode_attention.unified import SchemeAttributes
from fdjax.kernels.layer_program import launches as do
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.layer_program.operands import ABSENT, Operand, WeightOperand
from fdjax.kernels.matmul.params import KERNELS, config_numbers
from fdjax.kernels.paged import ScoreAttributes

# In the order of the enum Code of reader.h.
CODES: tuple[type[Launch], ...] = (
    *(do.Embed, do.Norm, do.HeadNorm, do.Linear, do.Activate, do.Rotate, do.Decode),
    *(do.Prefill, do.Sum, do.Gather, do.Scatter, do.Share),
)
_CODE_OF = {launch: code for code, launch in enumerate(CODES)}


def encode(launches: Iterable[Launch]) -> np.ndarray:
    """The array that the handler reads, of int64."""
    numbers: list[int] = []
    for launch in launches:
        numbers.append(_CODE_OF[type(launch)])
        _add_fields(numbers, launch)
    return np.array(numbers, np.int64)


def _add_fields(
    numbers: list[int], part: Launch | ScoreAttributes | SchemeAttributes
) -> None:
    """Adds its numbers: every size of a call has hundreds of launches."""
    for name in _names(type(part)):
        value: object = getattr(part, name)
        if value is None:
            numbers.append(ABSENT)
        elif isinstance(value, int):
            numbers.append(int(value))
        elif isinstance(value, Operand):
            numbers.append(value.number)
        elif isinstance(value, float):
            numbers.append(_bits(value))
        elif isinstance(value, WeightOperand):
            numbers.extend(value.numbers)
        elif isinstance(value, KERNELS):
            numbers.extend(config_numbers(value))
        else:
            assert isinstance(value, ScoreAttributes | SchemeAttributes)
            _add_fields(numbers, value)


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Of its fields."""
    return tuple(field.name for field in fields(kind))


def _bits(value: float) -> int:
    """Of a float32."""
    (bits,) = struct.unpack("i", struct.pack("f", value))
    return bits
