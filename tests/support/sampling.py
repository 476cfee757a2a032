"""Sampling for tests: a batch in one call, and NumPy's idea of its distribution."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan, plan_of
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import SamplingState, init_state

jitted_sample = jax.jit(sample, static_argnames="plan")


def normal_logits(*shape: int, seed: int = 0) -> jax.Array:
    """Logits with a standard deviation of two."""
    values = np.random.default_rng(seed).normal(size=shape) * 2
    return jnp.asarray(values, jnp.float32)


def state_of(
    params: Sequence[SamplingParams],
    *,
    vocab_size: int,
    plan: SamplingPlan | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    eos_token_ids: Sequence[int] = (),
    num_rows: int | None = None,
) -> SamplingState:
    """A state with defaults; requests without a seed get their index."""
    return init_state(
        params,
        prompts or [()] * len(params),
        plan=plan or plan_of(params),
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        default_seeds=range(len(params)),
        num_rows=num_rows or len(params),
        outputs=outputs,
    )


def sample_once(
    logits: jax.Array,
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
) -> Sampled:
    """One token for each of `params`, with the smallest plan."""
    state = state_of(
        params, vocab_size=logits.shape[1], prompts=prompts, outputs=outputs
    )
    return jitted_sample(logits, state, plan=plan_of(params))[0]


def asked(params: SamplingParams) -> str:
    """A test's name for a request: what differs from the defaults."""
    default = dataclasses.asdict(SamplingParams())
    fields = {name: getattr(params, name) for name in default}
    changed = [f"{n}={v}" for n, v in fields.items() if v != default[n]]
    return " ".join(changed) or "default"


def expected_probabilities(
    logits: NDArray[np.float64], params: SamplingParams
) -> NDArray[np.float64]:
    """Of one row without ties: filters one after the other, by sorting, in float64."""
    probabilities = _softmax(logits / params.temperature)
    keep = probabilities >= params.min_p * probabilities.max()
    probabilities = probabilities * keep / np.sum(probabilities * keep)
    order = np.argsort(-probabilities)
    if params.top_k > 0:
        probabilities[order[params.top_k :]] = 0
        probabilities /= probabilities.sum()
    if params.top_p < 1:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= params.top_p]] = 0
    return probabilities / probabilities.sum()


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
