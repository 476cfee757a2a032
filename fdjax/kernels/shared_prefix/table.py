"""The part of `shared_prefix` in tables of measurements: when to read once pays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdjax.kernels.tuning.files import integer
from fdjax.kernels.tuning.parts import Part


@dataclass(frozen=True)
class Worth:
    """What must be saved where rows share what they read; measured on an H200.

    Attributes:
        of_group: tokens that a group must save: reads of them by all of its rows but
            one.
        of_batch: tokens that all groups of a batch must save together: two more
            launches a layer.
        prompt_bytes: of a layer, that reading the prompts of beams once must save: the
            kernels that read what is shared and join it took 8.5 us more, in which 40
            MB are read (one after the other; they overlap since).
    """

    of_group: int = 1024
    of_batch: int = 16_384
    prompt_bytes: int = 40_000_000


def _worth(part: Mapping[str, Any]) -> Worth:
    return Worth(**{name: integer(part, name, 0) for name in vars(Worth())})


PART = Part("shared_prefix", frozenset(vars(Worth())), _worth, Worth())
