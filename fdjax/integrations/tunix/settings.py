"""From an actor and a `RolloutConfig` to the sizes of an engine."""

import pathlib
from typing import Any

import jax.numpy as jnp
from flax import nnx

from fdjax import device
from fdjax.engine.policy import StepPolicy
from fdjax.integrations.tunix.actors import dtype_of, read_actor
from fdjax.memory.plan import MemoryPlan
from fdjax.serve.setup import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Settings,
    fraction,
    kind_of_platform,
    positive,
)


def settings_for(
    actor: nnx.Module,
    rollout_config: Any,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    memory_fraction: float,
    page_size: int,
    steps_per_launch: int,
) -> Settings:
    """Everything that is decided before anything is allocated; see `FdjaxRollout`.

    Raises:
        Unsupported: the actor is of a class, or has an option, that fdjax has not.
        ConfigError: a size is not a whole number from 1, or the fraction not between 0
            and 1.
    """
    kind = kind_of_platform()
    rows = MAX_NUM_SEQS[kind] if max_num_seqs is None else max_num_seqs
    tokens = max_num_batched_tokens
    if tokens is None:
        tokens = MAX_BATCHED_TOKENS[kind]
    # A sequence that is scored has room for a token that nobody reads.
    max_model_len = positive("kv_cache_size", rollout_config.kv_cache_size) + 1
    return Settings(
        folder=pathlib.Path(),  # nothing is read from files
        config=read_actor(actor, max_model_len=max_model_len),
        dtype=jnp.dtype(rollout_config.data_type or dtype_of(actor)),
        max_model_len=max_model_len,
        max_num_seqs=positive("max_num_seqs", rows),
        max_batched_tokens=positive("max_num_batched_tokens", tokens),
        memory_fraction=fraction("memory_fraction", memory_fraction),
        page_size=positive("page_size", page_size),
        policy=StepPolicy(),
        steps_per_launch=positive("steps_per_launch", steps_per_launch),
    )


def budgeted(settings: Settings) -> MemoryPlan:
    """The plan for a fraction of the device's memory: the trainer has the rest.

    Raises:
        MemoryBudgetError: the model does not fit into it.
    """
    whole = device.memory_budget(1.0)
    return settings.memory_plan(
        int(settings.memory_fraction * whole), budget_from="memory_fraction"
    )
