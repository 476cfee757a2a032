"""The plan of a model's memory, made before anything is allocated."""

from dataclasses import dataclass

import jax.numpy as jnp

from fdjax.errors import MemoryBudgetError
from fdjax.memory.kv import KVLayout


@dataclass(frozen=True)
class MemoryPlan:
    """Where every byte of the budget goes.

    Attributes:
        budget_bytes: what the engine may use of the device.
        weight_bytes: the model's parameters.
        workspace_bytes: room for activations and XLA's other temporaries.
        layout: the KV array that fits in the rest.
        page_workspace_bytes: temporaries that grow with the KV array, a page.
        max_model_len: longest sequence served, in tokens.
        step_pages: of the KV array, at its end, what the largest step needs, or all of
            a smaller array, whose steps are smaller; 0 where steps have their room
            beside the array, in the workspace.
        least_step_pages: likewise, of the smallest step.
    """

    budget_bytes: int
    weight_bytes: int
    workspace_bytes: int
    layout: KVLayout
    page_workspace_bytes: int
    max_model_len: int
    step_pages: int = 0
    least_step_pages: int = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV array."""
        return self.layout.nbytes

    @property
    def free_bytes(self) -> int:
        """What the plan leaves unused."""
        workspace = self.workspace_bytes
        workspace += self.page_workspace_bytes * self.layout.num_pages
        used = self.weight_bytes + workspace + self.kv_bytes
        return self.budget_bytes - used


def plan_memory(
    *,
    budget_bytes: int,
    weight_bytes: int,
    workspace_bytes: int,
    layout: KVLayout,
    page_workspace_bytes: int,
    max_model_len: int,
    wanted_tokens: int,
    step_pages: int = 0,
    least_step_pages: int = 0,
    budget_from: str = "memory_fraction",
) -> MemoryPlan:
    """Gives the KV array what weights and workspace leave, up to what is wanted.

    Args:
        budget_bytes: what the engine may use of the device.
        weight_bytes: the model's parameters.
        workspace_bytes: room for temporaries.
        layout: the KV array's layout; its number of pages is replaced.
        page_workspace_bytes: temporaries that grow with the KV array, a page.
        max_model_len: longest sequence, in tokens; at least one must fit.
        wanted_tokens: tokens beyond which more room would stay unused.
        step_pages: see `MemoryPlan`; they are more than that room.
        least_step_pages: see `MemoryPlan`; beside them a sequence must fit.
        budget_from: the setting to raise for a larger budget.

    Raises:
        MemoryBudgetError: not one sequence of `max_model_len` fits.
    """
    left = budget_bytes - weight_bytes - workspace_bytes
    page_cost = layout.page_bytes + page_workspace_bytes
    fitting = max(left, 0) // page_cost
    needed = layout.pages_for(max_model_len) + least_step_pages
    if fitting < needed:
        short = needed * page_cost - left
        is_wide = jnp.dtype(layout.dtype).itemsize > 2
        lower = (
            "take a smaller model or a larger device"
            if weight_bytes >= budget_bytes
            else "lower max_model_len or max_num_seqs"
        )
        raise MemoryBudgetError(
            f"the model does not fit: weights take {gib(weight_bytes)}, workspace "
            f"{gib(workspace_bytes)}, and one sequence of {max_model_len} tokens "
            f"{_beside(least_step_pages)}{gib(needed * page_cost)}, together "
            f"{gib(short)} more than the budget of {gib(budget_bytes)}; {lower}, or "
            f"raise {budget_from}{', or take bfloat16' if is_wide else ''}"
        )
    wanted = layout.pages_for(wanted_tokens) + step_pages
    num_pages = min(fitting, max(needed, wanted))
    return MemoryPlan(
        budget_bytes=budget_bytes,
        weight_bytes=weight_bytes,
        workspace_bytes=workspace_bytes,
        layout=layout.with_pages(num_pages),
        page_workspace_bytes=page_workspace_bytes,
        max_model_len=max_model_len,
        step_pages=min(step_pages, num_pages),
        least_step_pages=least_step_pages,
    )


def _beside(step_pages: int) -> str:
    return "with a step of one token " if step_pages else ""


def gib(num_bytes: int) -> str:
    """Bytes for people: "1.50 GiB", or MiB below a tenth of one."""
    if num_bytes < 2**30 / 10:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**30:.2f} GiB"
