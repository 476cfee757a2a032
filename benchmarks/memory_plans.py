"""Longest sequences by the memory plan: what a budget has room for, and in which way.

Three ways of FlashDecoding++Next's Fig. 19: the whole prompt in one call, whose results
have memory of their own; the same, with what the call needs at the KV array's end,
where keys and values of later tokens lie once it is done; and the prompt in chunks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from fdjax.engine.lent_pages import LentPages
from fdjax.engine.workspace import separate_bytes, state_bytes
from fdjax.errors import MemoryBudgetError
from fdjax.memory.plan import MemoryPlan
from fdjax.serve.setup import Settings

# Half of what attention takes of one row.
MOST_TOKENS = 2**24


def settings_of(model: str, **options: Any) -> Settings:
    """Settings of one row, whose model takes positions as far as there is memory."""
    far = {"max_position_embeddings": MOST_TOKENS}
    return Settings.of(model, max_num_seqs=1, hf_overrides=far, **options)


def planned_bytes(plan: MemoryPlan) -> int:
    """Weights, KV array and workspace."""
    return plan.budget_bytes - plan.free_bytes


def room_tokens(plan: MemoryPlan) -> int:
    """Tokens that the KV array has room for beside the smallest step."""
    layout = plan.layout
    return (layout.num_pages - plan.least_step_pages) * layout.page_size


def longest(settings: Settings, budget_bytes: int | None) -> MemoryPlan:
    """The plan of the longest sequence that fits, prompt in chunks.

    Args:
        settings: of `settings_of`.
        budget_bytes: `None`: what the device offers.

    Raises:
        MemoryBudgetError: nothing fits.
    """

    def plan(pages: int) -> MemoryPlan:
        tokens = pages * settings.page_size
        sized = dataclasses.replace(settings, max_model_len=tokens)
        return sized.memory_plan(budget_bytes)

    def fits(pages: int) -> bool:
        try:
            plan(pages)
        except MemoryBudgetError:
            return False
        return True

    smallest = plan(1)
    layout = smallest.layout
    left = smallest.free_bytes // layout.page_bytes + layout.num_pages
    return plan(max(most(fits, near=left - smallest.least_step_pages), 1))


def arena_prompt(settings: Settings, plan: MemoryPlan) -> int:
    """Tokens of the longest prompt of one call beside its keys and values.

    Args:
        settings: of `settings_of`.
        plan: of `longest`, whose steps borrow pages.
    """
    layout = plan.layout

    def fits(pages: int) -> bool:
        return pages + borrowed_pages(settings, plan, pages) <= layout.num_pages

    whole = layout.num_pages
    share = whole / (whole + borrowed_pages(settings, plan, whole))
    return most(fits, near=int(share * whole)) * layout.page_size


def borrowed_pages(settings: Settings, plan: MemoryPlan, pages: int) -> int:
    """What a call of a prompt of so many pages needs at the KV array's end."""
    layout, widths = plan.layout, (pages,)
    lent = LentPages(settings.config, layout, num_rows=1, widths=widths, sizes={})
    return lent.pages("extend", pages * layout.page_size)


def separate_prompt(settings: Settings, budget_bytes: int) -> int:
    """Tokens of the longest prompt of one call whose results have their own memory."""
    config, dtype = settings.config, settings.dtype
    layout = settings.widest_layout.with_pages(1)
    fixed = settings.weight_bytes + state_bytes(config, num_rows=1)

    def fits(pages: int) -> bool:
        tokens = pages * settings.page_size
        activations = separate_bytes(config, dtype=dtype, num_tokens=tokens)
        return fixed + activations + pages * layout.page_bytes <= budget_bytes

    return most(fits, near=budget_bytes // layout.page_bytes) * settings.page_size


def most(fits: Callable[[int], bool], *, near: int) -> int:
    """The largest number, of pages or of rows, that fits; 0 where one does not.

    Args:
        fits: whether so many do; of fewer than fit, all do.
        near: where to begin: each question is a plan, and takes a second.
    """
    low, high, step = 0, max(near, 1), 1
    while fits(high):
        low, high, step = high, high + step, 2 * step
    while high - step > low and not fits(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    while high - low > 1:  # `low` fits, or is 0; `high` does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
