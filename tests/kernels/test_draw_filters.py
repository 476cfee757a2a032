"""Top-k, top-p and min-p: exactly the right tokens stay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.generate.filters import init_filters
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import plan_of
from fdjax.kernels.draw.filters import kept
from fdjax.notation import Array, Bool, Float
from tests.support.sampling import asked, expected_probabilities

RUN = jax.jit(kept)


def kept_of(
    gaps: Float[Array, "B V"], params: SamplingParams, run: Callable[..., Any] = kept
) -> Bool[Array, "B V"]:
    filters, plan = init_filters([params]), plan_of([params])
    return run(
        gaps,
        filters.top_k if plan.top_k else None,
        filters.top_p if plan.top_p else None,
        filters.min_p if plan.min_p else None,
    )


def kept_by(logits: np.ndarray, params: SamplingParams) -> list[bool]:
    gaps = jnp.asarray((logits.max() - logits) / params.temperature, jnp.float32)
    keep = kept_of(gaps[None], params, RUN)
    return np.asarray(keep[0]).tolist()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 70),
    # Not any float: one next to a sum of masses is decided by rounding.
    top_p=st.integers(1, 100).map(lambda percent: percent / 100),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
)
def test_agrees_with_sorting(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
):
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    logits = np.random.default_rng(seed).normal(size=64) * 3
    expected = expected_probabilities(logits, params) > 0
    assert kept_by(logits, params) == expected.tolist()


@pytest.mark.parametrize(
    ("params", "kept_tokens"),
    [
        (SamplingParams(top_k=1), [1, 3]),
        (SamplingParams(top_k=2), [1, 3]),
        (SamplingParams(top_k=3), [0, 1, 3, 4]),
        (SamplingParams(top_p=1e-30), [1, 3]),
        (SamplingParams(top_p=1e-300), [1, 3]),
        (SamplingParams(min_p=1.0), [1, 3]),
        (SamplingParams(min_p=1e-300), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(min_p=1e-30), [0, 1, 2, 3, 4]),
        (SamplingParams(top_k=5, top_p=0.99), [0, 1, 3, 4]),
        (SamplingParams(top_k=100, top_p=1 - 1e-12), [0, 1, 2, 3, 4, 5]),
    ],
    ids=lambda v: asked(v) if isinstance(v, SamplingParams) else "",
)
def test_tied_tokens_share_their_fate(params: SamplingParams, kept_tokens: list[int]):
    logits = np.array([1.0, 2.0, -5.0, 2.0, 1.0, -np.inf])
    keep = kept_by(logits, params)
    assert [token for token, kept_ in enumerate(keep) if kept_] == kept_tokens


def test_top_p_sees_what_top_k_left():
    # Probabilities 0.4, 0.3, 0.2, 0.1: after top-k=2 they are 4/7 and 3/7.
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert kept_by(logits, SamplingParams(top_p=0.5)) == [True, True, False, False]
    both = SamplingParams(top_p=0.5, top_k=2)
    assert kept_by(logits, both) == [True, False, False, False]


def test_top_p_sees_what_min_p_left():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    both = SamplingParams(top_p=0.5, min_p=0.7)
    assert kept_by(logits, both) == [True, False, False, False]


def test_program_has_no_sort():
    params = SamplingParams(top_p=0.5, top_k=2, min_p=0.1)
    jaxpr = jax.make_jaxpr(lambda gaps: kept_of(gaps, params))
    assert "sort" not in str(jaxpr(jnp.zeros((1, 8))))
