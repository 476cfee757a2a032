"""An operation, its implementations, and the one rule for choosing among them.

The rule: an implementation forced by `Op.using` serves or raises `Unsupported`; else
the first one, in the order given, whose `refuse` returns `None`; else the reference,
with one warning per call signature when tracing for a GPU. An operation may order its
implementations anew for each call. Every choice is logged at level DEBUG.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax

from fdjax import device
from fdjax.errors import Unsupported

logger = logging.getLogger(__name__)

REFERENCE = "reference"

# Part of jit's cache key: switching it traces again, switching back hits the cache.
_forced = jax.make_user_context(())
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Impl[**P, R]:
    """One way to compute an operation.

    Attributes:
        run: computes it; may assume that `refuse` returned `None`.
        refuse: takes the same arguments and says why this implementation cannot
            serve the call, or `None` when it can.
    """

    run: Callable[P, R]
    refuse: Callable[P, str | None]


class Op[**P, R]:
    """An operation: its definition and the faster ways to compute it.

    Args:
        name: for messages.
        reference: the definition.
        impls: the other implementations, in order of preference.
        order: takes a call's arguments and names the implementations to try for it,
            best first; what it leaves out is not tried. The reference ends the list,
            there or not.
    """

    def __init__(
        self,
        name: str,
        reference: Callable[P, R],
        impls: Mapping[str, Impl[P, R]] | None = None,
        order: Callable[P, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self._reference = reference
        self._impls = dict(impls or {})
        self._order = order

    @property
    def names(self) -> tuple[str, ...]:
        """Every implementation, in order of preference; the reference is last."""
        return (*self._impls, REFERENCE)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Computes the operation by the implementation that the rule chooses."""
        name, refusals = self._choose(*args, **kwargs)
        if name == REFERENCE:
            self._warn(refusals, args)
            return self._reference(*args, **kwargs)
        return self._impls[name].run(*args, **kwargs)

    def using(self, name: str) -> AbstractContextManager[Any]:
        """Forces one implementation inside a `with` block.

        Raises:
            ValueError: there is no implementation of that name.
        """
        if name not in self.names:
            known = ", ".join(self.names)
            raise ValueError(
                f"{self.name} has no implementation {name!r}; it has {known}"
            )
        others = tuple(entry for entry in _forced.value if entry[0] != self.name)
        return _forced((*others, (self.name, name)))

    def refuse(self, name: str, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Why implementation `name` cannot serve this call, or `None`."""
        if name == REFERENCE:
            return None
        return self._impls[name].refuse(*args, **kwargs)

    def choice(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The name of the implementation that serves this call.

        Raises:
            Unsupported: one is forced, and cannot.
        """
        return self._choose(*args, **kwargs)[0]

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """One line: what serves this call, and why the ones before it do not."""
        return self._explanation(*self._find(*args, **kwargs))

    def _choose(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, dict[str, str]]:
        name, refusals = self._find(*args, **kwargs)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", self._explanation(name, refusals))
        return name, refusals

    def _explanation(self, name: str, refusals: Mapping[str, str]) -> str:
        reasons = "".join(f"; not {n}: {reason}" for n, reason in refusals.items())
        return f"{self.name}: {name}{reasons}"

    def _find(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, dict[str, str]]:
        forced = dict(_forced.value).get(self.name)
        if forced is not None:
            reason = self.refuse(forced, *args, **kwargs)
            if reason is not None:
                raise Unsupported(f"{self.name}[{forced}]: {reason}")
            return forced, {}
        refusals: dict[str, str] = {}
        order = self._order(*args, **kwargs) if self._order else self.names
        for name in order:
            reason = self.refuse(name, *args, **kwargs)
            if reason is None:
                return name, refusals
            refusals[name] = reason
        return REFERENCE, refusals

    def _warn(self, refusals: dict[str, str], args: tuple[Any, ...]) -> None:
        if not refusals or device.platform() != "gpu":
            return
        signature = str(jax.tree.map(lambda a: getattr(a, "shape", a), args))
        if (self.name, signature) in _warned:
            return
        _warned.add((self.name, signature))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        logger.warning("%s falls back to the reference (%s)", self.name, reasons)
