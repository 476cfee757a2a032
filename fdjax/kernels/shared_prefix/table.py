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
            launches a layer. Whole steps of Llama-3-8B take as long either way there.
        prompt_bytes: of a layer, that reading the prompts of beams once must save.
    """

    of_group: int = 2064
    of_batch: int = 49_152
    prompt_bytes: int = 16_000_000


def _worth(part: Mapping[str, Any]) -> Worth:
    return Worth(**{name: integer(part, name, 0) for name in vars(Worth())})


PART = Part("shared_prefix", frozenset(vars(Worth())), _worth, Worth())
