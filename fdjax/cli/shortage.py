"""What a model that does not fit would need, and what would make it fit."""

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp

from fdjax.errors import MemoryBudgetError
from fdjax.memory.plan import MemoryPlan, gib
from fdjax.serve.setup import Settings

# More than there is of any device.
_ENOUGH = 2**60
_NARROW = "bfloat16"


def smallest_plan(settings: Settings) -> MemoryPlan:
    """The plan of the least memory in which one longest sequence fits."""
    wide = settings.memory_plan(_ENOUGH)
    pages = wide.layout.pages_for(wide.max_model_len) + wide.least_step_pages
    page_bytes = wide.layout.page_bytes + wide.page_workspace_bytes
    needed = wide.weight_bytes + wide.workspace_bytes + pages * page_bytes
    return settings.memory_plan(needed)


def would_fit(settings: Settings, budget_bytes: int) -> list[str]:
    """What would make a model fit that does not, each of them tried.

    The last is what it needs as it stands.
    """
    needed = smallest_plan(settings).budget_bytes
    return [*_smaller(settings, budget_bytes), f"a budget of {gib(needed)}"]


def _smaller(settings: Settings, budget_bytes: int) -> Iterator[str]:
    if settings.dtype.itemsize > 2:
        narrow = dataclasses.replace(settings, dtype=jnp.dtype(_NARROW))
        if _fits(narrow, budget_bytes):
            yield f"--dtype {_NARROW}"
    lengths, rows = ("max_model_len",), ("max_num_seqs",)
    alone = [_halved(settings, names, budget_bytes) for names in (lengths, rows)]
    if not any(alone):
        alone = [_halved(settings, lengths + rows, budget_bytes)]
    yield from filter(None, alone)


def _halved(
    settings: Settings, names: tuple[str, ...], budget_bytes: int
) -> str | None:
    """The first half, quarter and so on of some settings that fits, as options."""
    values = {name: getattr(settings, name) for name in names}
    while max(values.values()) > 1:
        values = {name: max(value // 2, 1) for name, value in values.items()}
        if _fits(dataclasses.replace(settings, **values), budget_bytes):
            options = (f"--{n.replace('_', '-')} {v}" for n, v in values.items())
            return " ".join(options)
    return None


def _fits(settings: Settings, budget_bytes: int) -> bool:
    try:
        settings.memory_plan(budget_bytes)
    except MemoryBudgetError:
        return False
    return True
