"""The workspace that the plan sets aside covers what XLA really takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import LLM
from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.workspace import workspace_bytes
from fdjax.generate.plan import SERVING_PLANS
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens
from fdjax.kernels import prefill_attention
from fdjax.kernels.decode_attention import OP
from fdjax.memory.plan import MemoryPlan
from fdjax.models import SHIPPED
from fdjax.serve.setup import Settings
from tests.support.handlers import skip_without


def memory_plan() -> MemoryPlan:
    """For the settings of the fixture `llm`."""
    return Settings.of(SHIPPED, max_model_len=128, max_num_seqs=4).memory_plan(2**30)


def operands(executor: Executor) -> tuple[Any, Any]:
    """Shapes of all rows' rules and progress, with everything that sampling can do."""
    executor.use(SERVING_PLANS[-1])
    try:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            (executor.rules, executor.progress),
        )
    finally:
        executor.use(SERVING_PLANS[0])


def temporaries(lowered: jax.stages.Lowered) -> int:
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def allowed(plan: MemoryPlan) -> int:
    """What the plan sets aside, however many pages there are."""
    return plan.workspace_bytes + plan.page_workspace_bytes * plan.layout.num_pages


def planned(implementation: str) -> MemoryPlan:
    """The plan of `llm` where this implementation serves decode attention."""
    if implementation == "cpu":
        skip_without("decode_attention", "cpu")
    with OP.using(implementation):
        return memory_plan()


def row_pages(buckets: Buckets) -> RowPages:
    """Of the most rows, as wide as can be."""
    counts = jnp.zeros(buckets.rows[-1], jnp.int32)
    return RowPages(jnp.stack([counts] * 3), counts, buckets.widths[-1])


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_decode_fits_the_workspace(llm: LLM, implementation: str):
    executor, buckets = llm.engine.executor, llm.engine.buckets
    plan = planned(implementation)
    steps = jax.ShapeDtypeStruct((buckets.rows[-1],), np.int32)
    pages = row_pages(buckets)
    with OP.using(implementation):
        lowered = executor.programs.lower_decode(
            *operands(executor), pages, steps, plan=SERVING_PLANS[-1]
        )
        assert temporaries(lowered) <= allowed(plan)


def test_only_decode_that_gathers_pages_has_room_for_them():
    reads, gathers = planned("cpu"), planned("reference")
    assert reads.page_workspace_bytes == 0
    # Keys and values of 16 tokens and 2 heads of 64, and the same again in float32.
    assert gathers.page_workspace_bytes == 2 * 2 * 16 * 2 * 64 * 4
    assert reads.workspace_bytes == gathers.workspace_bytes


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_the_largest_prefill_fits_the_workspace(llm: LLM, implementation: str):
    if implementation == "cpu":
        skip_without("prefill_attention", "cpu")
    engine = llm.engine
    rows = engine.buckets.rows[-1]
    tokens = engine.buckets.prefills[-1]

    def call() -> RowTokens:
        row = jnp.zeros(rows, jnp.int32)
        pages = row_pages(engine.buckets)
        return RowTokens(jnp.zeros(tokens, jnp.int32), row, row, row, row > 0, pages)

    _, progress = operands(engine.executor)
    with prefill_attention.OP.using(implementation):
        plan = memory_plan()
        lowered = engine.executor.programs.lower_extend(progress, jax.eval_shape(call))
        assert temporaries(lowered) <= plan.workspace_bytes


@pytest.mark.parametrize(
    "name", ["num_tokens", "num_rows", "max_model_len", "page_size"]
)
def test_more_work_never_needs_less(llm: LLM, name: str):
    sizes = {"num_tokens": 512, "num_rows": 4, "max_model_len": 128, "page_size": 16}
    small = workspace_bytes(llm.config, dtype=jnp.float32, lent=False, **sizes)
    sizes[name] *= 2
    assert workspace_bytes(llm.config, dtype=jnp.float32, lent=False, **sizes) >= small
