"""What is told of choices among implementations: to who records, logs and warnings."""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

from fdjax import device

logger = logging.getLogger(__name__)

_warned: set[tuple[str, str]] = set()
_recorded: ContextVar[list[str] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Generator[list[str]]:
    """Inside a `with` block: what `Op.explain` says of every choice made, as a list.

    Choices are made when a call is traced: what jit or `jax.eval_shape` has traced
    before is not traced again, and leaves no line.
    """
    lines: list[str] = []
    token = _recorded.set(lines)
    try:
        yield lines
    finally:
        _recorded.reset(token)


def tell(line: Callable[[], str]) -> None:
    """Records and logs a choice, if anybody wants to know.

    Args:
        line: what is told of it.
    """
    lines, logs = _recorded.get(), logger.isEnabledFor(logging.DEBUG)
    if lines is None and not logs:
        return
    told = line()
    if lines is not None:
        lines.append(told)
    if logs:
        logger.debug("%s", told)


def warn_of_reference(name: str, refusals: Mapping[str, str], call: Any) -> None:
    """Warns once where the reference serves on a GPU since all others refuse a call.

    Args:
        name: of the operation.
        refusals: why, by implementation.
        call: whose arrays' shapes are warned of.
    """
    # `recording` has just said so.
    if not refusals or device.platform() != "gpu" or _recorded.get() is not None:
        return
    # Shapes alone: the layers of a model differ in their static fields.
    signature = str([leaf.shape for leaf in jax.tree.leaves(call)])
    if (name, signature) in _warned:
        return
    _warned.add((name, signature))
    reasons = "; ".join(f"{one}: {why}" for one, why in refusals.items())
    logger.warning("%s falls back to the reference (%s)", name, reasons)
