"""One section of a device's tuning file: an operation's, or the chip's.

GEMM shapes have a reader of their own.
"""

import functools
import pathlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fdjax import device
from fdjax.kernels.tuning.files import places, read, unreadable

MEASURED_WITH = "measured_with"
"""How a part was measured, in words; any part may have it."""


class Part[T]:
    """A named part of each device's file, and what holds where no file has it.

    Args:
        name: in the file.
        fields: that the part has to have.
        parse: makes one of the part's fields; `KeyError`, `TypeError` or `ValueError`
            where they are wrong.
        default: where no file of the device has the part.
    """

    def __init__(
        self,
        name: str,
        fields: frozenset[str],
        parse: Callable[[Mapping[str, Any]], T],
        default: T,
    ) -> None:
        self.name = name
        self._fields = fields | {MEASURED_WITH}
        self._parse = parse
        self._default = default
        self._forced = ContextVar[T | None](f"fdjax_part_{name}", default=None)
        self.load = functools.cache(self._loaded)

    def find(self) -> T:
        """That of the device traced for.

        Raises:
            ConfigError: a file of the device cannot be read.
        """
        if (forced := self._forced.get()) is not None:
            return forced
        for path, _ in places(device.kind()):
            if (part := self.load(path)) is not None:
                return part
        return self._default

    @contextmanager
    def using(self, value: T) -> Generator[None]:
        """Inside a `with` block: `value` is found, whatever stands in files.

        It is no part of jit's cache key: to trace a function there that has been
        traced elsewhere finds what was.
        """
        before = self._forced.set(value)
        try:
            yield
        finally:
            self._forced.reset(before)

    def _loaded(self, path: pathlib.Path) -> T | None:
        """This part of a file; `None` where the file or the part is missing.

        Raises:
            ConfigError: the file cannot be read, or a field is missing or wrong.
        """
        part = read(path).get(self.name)
        if part is None:
            return None
        try:
            return self._parse(self._checked(part))
        except KeyError as error:
            raise unreadable(path, f"{self.name} has no {error}") from error
        except (TypeError, ValueError) as error:
            raise unreadable(path, f"{self.name}: {error}") from error

    def _checked(self, part: Any) -> Mapping[str, Any]:
        if not isinstance(part, dict):
            raise ValueError("it is no object")
        if unknown := sorted(part.keys() - self._fields):
            known = ", ".join(sorted(self._fields))
            raise ValueError(f"{unknown[0]!r} is none of {known}")
        return part
