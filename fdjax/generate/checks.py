"""Checks of values that users send: the right value back, or a `RequestError`."""

import math
import reprlib
from dataclasses import dataclass
from numbers import Integral, Real

from fdjax.errors import RequestError


@dataclass(frozen=True)
class Interval:
    """The values a field may take.

    Attributes:
        low: the smallest, or the bound itself when `open_below`.
        high: the largest.
        open_below: `low` itself is not allowed.
    """

    low: int | float
    high: int | float
    open_below: bool = False

    def __contains__(self, value: int | float) -> bool:
        return (self.low < value if self.open_below else self.low <= value) and (
            value <= self.high
        )

    def __str__(self) -> str:
        if self.open_below:
            return f"above {self.low} and at most {self.high}"
        return f"from {self.low} to {self.high}"


def real(field: str, value: object, allowed: Interval) -> float:
    """A finite number within `allowed`; integers become floats.

    Args:
        field: the name the user knows the value by.
        value: what the user sent; a bool is not a number.
        allowed: the values the field may take.

    Raises:
        RequestError: `value` is not a number, not finite or out of range.
    """
    number = _float(value)
    if number not in allowed:
        raise RequestError(f"{field} is {shown(value)}; use a number {allowed}")
    return number


def integer(field: str, value: object, allowed: Interval) -> int:
    """An integer within `allowed`.

    Args:
        field: the name the user knows the value by.
        value: what the user sent; neither a bool nor a float is an integer.
        allowed: the values the field may take.

    Raises:
        RequestError: `value` is not an integer or out of range.
    """
    number = _int(value)
    if number is None or number not in allowed:
        raise RequestError(f"{field} is {shown(value)}; use an integer {allowed}")
    return number


def flag(field: str, value: object) -> bool:
    """True or False.

    Raises:
        RequestError: `value` is neither.
    """
    if not isinstance(value, bool):
        raise RequestError(f"{field} is {shown(value)}; use True or False")
    return value


def shown(value: object) -> str:
    """`repr` of any value in at most some dozens of characters."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def _float(value: object) -> float:
    """The number, or NaN (in no interval) for what is not one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest float
        return math.inf


def _int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)
