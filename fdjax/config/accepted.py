"""Which fields of a declared part somebody consumes; every other is refused by name."""

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any

type Accepted = Mapping[type, Mapping[str, type | UnionType]]
"""The fields consumed of each class of parts, and of which types; a list to allow."""


def refused_field(part: Any, accepted: Accepted, path: str = "") -> str | None:
    """The first field that is not consumed as it is, or `None`.

    A field that `accepted` does not name passes only if it is `None` or `False`: then
    the part does not have what the field describes. So a field that is new to a class
    is refused wherever it is used, until somebody consumes it.

    Args:
        part: a dataclass of `fdjax.config.specs`.
        accepted: what is consumed, of its class and those of the parts in it.
        path: of `part`, with a final dot.

    Returns:
        The field's path and value.
    """
    classes = (each for each in type(part).__mro__ if each in accepted)
    consumed = accepted[next(classes)]
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), path + field.name
        kind = consumed.get(field.name)
        absent = value is None or value is False
        if not (absent if kind is None else isinstance(value, kind)):
            return f"{name} = {value!r}"
        if dataclasses.is_dataclass(value):
            inner = refused_field(value, accepted, f"{name}.")
            if inner is not None:
                return inner
    return None
