"""Checks fields of declared parts, and their values, by a list of those consumed."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args


@dataclasses.dataclass(frozen=True)
class Values:
    """Values that a field may have.

    Attributes:
        kind: their types; a bool is no int here.
        allowed: which of these types, in words, behind "expected".
        holds: whether one is; it is not asked of `None`.
    """

    kind: type | UnionType
    allowed: str
    holds: Callable[[Any], bool] = dataclasses.field(repr=False)

    @property
    def or_none(self) -> "Values":
        """The same, or `None`."""
        allowed = f"{self.allowed}, or None"
        return dataclasses.replace(self, kind=self.kind | None, allowed=allowed)


@dataclasses.dataclass(frozen=True)
class Each:
    """A tuple, each of whose elements is `element`."""

    element: "Wanted"


type Wanted = type | UnionType | Values | Each
type Accepted = Mapping[type, Mapping[str, Wanted]]
"""The fields consumed of each class of parts, and which values; a list to allow."""

COUNT = Values(int, "an int from 1", lambda value: value >= 1)
ORDINAL = Values(int, "an int from 0", lambda value: value >= 0)
POSITIVE = Values(float, "a positive, finite float", lambda value: 0 < value < math.inf)
FINITE = Values(float, "a finite float", math.isfinite)


def one_of(*names: str) -> Values:
    """One of these strings."""
    return Values(str, _listed(names), lambda value: value in names)


def refusal(part: Any, accepted: Accepted, path: str = "") -> str | None:
    """What is wrong with the first field that is not consumed as it is, or `None`.

    A field that `accepted` does not name passes only if it is `None` or `False`: then
    the part does not have what the field describes. So a field that is new to a class
    is refused wherever it is used, until somebody consumes it.

    Args:
        part: a dataclass of a class in `accepted`, or of one derived from it.
        accepted: what is consumed, of its class and those of the parts in it.
        path: of `part`, with a final dot.

    Returns:
        The field's path, its value or class, and what is expected instead.
    """
    classes = [each for each in type(part).__mro__ if each in accepted]
    assert classes, f"a {type(part).__name__} is wanted, but no field of it is named"
    consumed = accepted[classes[0]]
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), path + field.name
        wanted = consumed.get(field.name)
        if wanted is not None:
            problem = _refused(value, wanted, accepted, name)
        elif value is None or value is False:
            problem = None
        else:
            problem = (
                f"nobody consumes {name} = {value!r}; give it to an instruction in "
                "models.program, and name it in models.accepted"
            )
        if problem is not None:
            return problem
    return None


def _refused(value: Any, wanted: Wanted, accepted: Accepted, path: str) -> str | None:
    if isinstance(wanted, Each):
        if not isinstance(value, tuple):
            return _wrong_class(value, path, "a tuple")
        found = (
            _refused(each, wanted.element, accepted, f"{path}.{index}")
            for index, each in enumerate(value)
        )
        return next((each for each in found if each is not None), None)
    if isinstance(wanted, Values):
        kind, allowed, holds = wanted.kind, wanted.allowed, wanted.holds
    else:
        kind, allowed, holds = wanted, _listed(map(_name, _classes(wanted))), None
    if not _is(value, kind):
        return _wrong_class(value, path, allowed)
    if value is not None and holds is not None and not holds(value):
        return f"{path} = {value!r}; expected {allowed}"
    return refusal(value, accepted, f"{path}.") if _is_part(value) else None


def _wrong_class(value: Any, path: str, allowed: str) -> str:
    shown = "" if _is_part(value) else f" = {value!r}"
    name = _name(type(value))
    return f"{path}{shown} is of the class {name}; expected {allowed}"


def _is(value: Any, kind: type | UnionType) -> bool:
    """Whether it has one of these types; to Python a bool would be an int."""
    classes = _classes(kind)
    return bool in classes if isinstance(value, bool) else isinstance(value, classes)


def _classes(kind: type | UnionType) -> tuple[type, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _is_part(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _name(kind: type) -> str:
    return "None" if kind is NoneType else kind.__name__


def _listed(names: Any) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
