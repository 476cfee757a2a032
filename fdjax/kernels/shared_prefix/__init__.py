"""Prefixes that rows of a batch share, read once for all of them."""

from fdjax.kernels.shared_prefix.groups import Group, find_groups
from fdjax.kernels.shared_prefix.plan import (
    plan_prefixes,
    plan_prompts,
    prefix_shapes,
    room_for,
    room_for_prompts,
)

__all__ = [
    "Group",
    "find_groups",
    "plan_prefixes",
    "plan_prompts",
    "prefix_shapes",
    "room_for",
    "room_for_prompts",
]
