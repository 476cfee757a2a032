"""Which implementation serves each operation of a decode step."""

import contextlib
import dataclasses
import logging
from collections.abc import Generator

import jax
import jax.numpy as jnp

from fdjax.generate.steps import decode
from fdjax.kernels import op
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.serve.setup import Settings

# Rows of the decode step that is explained; kernels for few rows serve this many.
NUM_ROWS = 8


def explanations(settings: Settings, plan: MemoryPlan) -> list[str]:
    """One line for each operation and each answer to which implementation serves it.

    A decode step of a layer of each kind is traced, not run: nothing is allocated.

    Args:
        settings: the model and its type.
        plan: gives the KV array's shape.
    """
    windows = tuple(dict.fromkeys(settings.config.windows))  # layers differ in no more
    config = dataclasses.replace(
        settings.config, num_layers=len(windows), windows=windows
    )
    layout = dataclasses.replace(plan.layout, num_layers=len(windows))
    width = layout.pages_for(plan.max_model_len)
    each = jax.ShapeDtypeStruct((NUM_ROWS,), jnp.int32)
    with _choices() as lines:
        jax.eval_shape(
            decode,
            Decoder(config, settings.dtype),
            jax.eval_shape(layout.allocate),
            each,
            each,
            jax.ShapeDtypeStruct((NUM_ROWS, width), jnp.int32),
        )
    return list(dict.fromkeys(lines))


class _Collector(logging.Handler):
    """Keeps what operations say of their choices.

    Args:
        lines: where to.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line; warnings of the same logger say nothing more."""
        if record.levelno == logging.DEBUG:
            self._lines.append(record.getMessage())


@contextlib.contextmanager
def _choices() -> Generator[list[str]]:
    """The choices of all operations traced inside, as `Op.explain` words them."""
    lines: list[str] = []
    handler = _Collector(lines)
    level, propagate = op.logger.level, op.logger.propagate
    op.logger.addHandler(handler)
    op.logger.setLevel(logging.DEBUG)
    op.logger.propagate = False
    try:
        yield lines
    finally:
        op.logger.removeHandler(handler)
        op.logger.setLevel(level)
        op.logger.propagate = propagate
