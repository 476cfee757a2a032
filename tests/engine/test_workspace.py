"""The workspace that the plan sets aside covers what XLA really takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import LLM, SamplingParams
from fdjax.engine.engine import Engine
from fdjax.engine.workspace import workspace_bytes
from fdjax.generate.plan import SamplingPlan, plan_of

DRAWN = plan_of([SamplingParams(temperature=0.7, top_k=50, top_p=0.9)])


def operands(engine: Engine, plan: SamplingPlan) -> tuple[Any, Any]:
    """Shapes of the largest batch's rules and progress."""
    rows, width = engine.buckets.rows[-1], engine.buckets.widths[-1]
    batch = engine._batch([], [], plan=plan, num_rows=rows, width=width)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch
    )


def temporaries(lowered: jax.stages.Lowered) -> int:
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.fixture(scope="module")
def allowed(llm: LLM) -> int:
    """What the plan sets aside, however many pages there are."""
    plan = llm.engine.plan
    return plan.workspace_bytes + plan.page_workspace_bytes * plan.layout.num_pages


def test_decode_fits_the_workspace(llm: LLM, allowed: int):
    rules, progress = operands(llm.engine, DRAWN)
    lowered = llm.engine._programs.lower_decode(rules, progress, plan=DRAWN)
    assert temporaries(lowered) <= allowed


def test_the_largest_prefill_fits_the_workspace(llm: LLM, allowed: int):
    engine = llm.engine
    rules, progress = operands(engine, DRAWN)
    prompt = engine.buckets.prompts[-1]
    rows = engine.buckets.prefill_rows(prompt, engine.buckets.rows[-1])
    vector = jax.ShapeDtypeStruct((rows,), np.int32)
    tokens = jax.ShapeDtypeStruct((rows, prompt), np.int32)
    programs = engine._programs
    lowered = programs._admit.lower(
        programs._weights, rules, progress, vector, tokens, vector, plan=DRAWN
    )
    assert temporaries(lowered) <= allowed


@pytest.mark.parametrize("name", ["num_tokens", "num_rows", "max_model_len"])
def test_more_work_never_needs_less(llm: LLM, name: str):
    sizes = {"num_tokens": 512, "num_rows": 4, "max_model_len": 128}
    small = workspace_bytes(llm.config, dtype=jnp.float32, **sizes)
    sizes[name] *= 2
    assert workspace_bytes(llm.config, dtype=jnp.float32, **sizes) >= small
