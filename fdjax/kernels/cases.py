"""A call that matters: shared by an operation's tests, its tuner and its benchmark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

type Tag = Literal["ci", "tune", "bench"]


@dataclass(frozen=True)
class Case:
    """One call of an operation, without data.

    Attributes:
        name: the model and the situation it comes from.
        args: shapes and dtypes of the arrays.
        kwargs: the keyword arguments.
        tags: "ci" is small enough for a CPU, "tune" is searched for configurations,
            "bench" is timed.
    """

    name: str
    args: tuple[jax.ShapeDtypeStruct, ...]
    kwargs: Mapping[str, Any]
    tags: frozenset[Tag]


def tagged(cases: Iterable[Case], tag: Tag) -> tuple[Case, ...]:
    """The cases that carry `tag`."""
    return tuple(case for case in cases if tag in case.tags)
