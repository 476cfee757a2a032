"""What a `RolloutConfig` asks for, in fdjax's words, or why it cannot be served."""

import dataclasses
from collections.abc import Sequence
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.errors import RequestError, Unsupported
from fdjax.generate.params import GREEDY_BELOW, SamplingParams


def check_config(config: Any) -> None:
    """Refuses what a rollout would have to be made for.

    Args:
        config: a `RolloutConfig`.

    Raises:
        Unsupported: it wants more than one device, or a mapping of its own.
    """
    for name in ("tensor_parallel_size", "data_parallel_size", "expert_parallel_size"):
        size = getattr(config, name)
        if size not in (-1, 1):
            raise Unsupported(f"{name} is {size}; fdjax serves from one device: use 1")
    if config.rollout_mapping_config is not None:
        raise Unsupported(
            "rollout_mapping_config is given; fdjax knows where the actor's weights "
            "go: leave it None"
        )


def sampling_params(
    config: Any, *, eos_id: int, num_prompts: int
) -> list[SamplingParams]:
    """How each of the prompts of a call is to be continued.

    Args:
        config: a `RolloutConfig`.
        eos_id: ends an output, where the config has no `eos_tokens`.
        num_prompts: of the call; with a seed each draws by itself.

    Raises:
        Unsupported: it wants what fdjax has not.
        RequestError: a number is out of range.
    """
    given = config.temperature
    if isinstance(given, bool) or not isinstance(given, SupportsFloat):
        raise RequestError(f"temperature is {given!r}; give a number, 0 or more")
    temperature = float(given)
    greedy = temperature < GREEDY_BELOW
    if config.top_p is None and not greedy:
        raise Unsupported(
            f"top_p is None with temperature {temperature}, which some of Tunix's "
            "rollouts take for greedy and others not; use temperature 0, or top_p 1"
        )
    if config.return_logprobs and not greedy and temperature != 1:
        raise Unsupported(
            f"return_logprobs with temperature {temperature}: fdjax's are of the "
            "logits before it; use temperature 1, or no log-probabilities"
        )
    shared = SamplingParams(
        temperature=temperature,
        top_p=1.0 if config.top_p is None else config.top_p,
        top_k=config.top_k or 0,
        max_tokens=config.max_tokens_to_generate,
        stop_token_ids=tuple(config.eos_tokens or (eos_id,)),
        ignore_eos=True,
        logprobs=0 if config.return_logprobs else None,
    )
    seeds = _seeds(config.seed, num_prompts)
    return [dataclasses.replace(shared, seed=seed) for seed in seeds]


def _seeds(seed: Any, count: int) -> Sequence[int | None]:
    """Independent seeds from one, which is an integer or a key of `jax.random`."""
    if seed is None:
        return [None] * count
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    words = np.atleast_1d(np.asarray(seed)).ravel().tolist()
    if not words or not all(type(word) is int and word >= 0 for word in words):
        raise RequestError(f"seed is {seed!r}; give whole numbers from 0, or a key")
    drawn = np.random.SeedSequence(words).generate_state(count, np.uint64)
    return (drawn >> np.uint64(1)).tolist()
