"""The workspace that the plan sets aside covers what XLA really takes."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import LLM
from fdjax.engine import workspace
from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.timed_gemms import tunes_gemms, tuning_bytes
from fdjax.engine.workspace import workspace_bytes
from fdjax.generate.plan import SERVING_PLANS
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens
from fdjax.kernels import prefill_attention
from fdjax.kernels.decode_attention import OP
from fdjax.memory.kv import KVLayout
from fdjax.memory.plan import MemoryPlan
from fdjax.models import SHIPPED
from fdjax.models.config import ModelConfig
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.serve.setup import Settings
from tests.support import h200
from tests.support.handlers import skip_without

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"


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


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    h200.pretend(monkeypatch, tmp_path)


def shipped(name: str) -> tuple[ModelConfig, KVLayout]:
    """A model that fdjax has the configuration of, and its KV array."""
    settings = Settings.of(
        CONFIGS / f"{name}.json", dtype="bfloat16", max_num_seqs=1, max_model_len=1024
    )
    return settings.config, settings.widest_layout


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


# --- XLA's timing of GEMMs, on a GPU --------------------------------------------------


@pytest.mark.usefixtures("on_h200")
def test_nothing_is_set_aside_for_timing_where_nothing_is_timed():
    """What is the largest then is the scores of a prompt's tokens."""
    config, layout = shipped("llama3-8b")
    assert layout.lent
    assert not tunes_gemms(config, layout, num_rows=1, width=64)
    assert tuning_bytes(config, layout, num_tokens=8192, num_rows=1, width=64) == 0
    sizes = {"num_tokens": 8192, "num_rows": 1, "max_model_len": 1024, "page_size": 16}
    scores = 3 * 64 * 128_256 * 4
    beside = workspace.state_bytes(config, num_rows=1) + workspace.SLACK_BYTES
    found = workspace_bytes(config, dtype=jnp.bfloat16, lent=True, **sizes)
    assert found == scores + beside


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize(("num_rows", "is_timed"), [(64, False), (256, True)])
def test_a_head_that_xla_multiplies_is_timed(num_rows: int, is_timed: bool):
    """The library adds no bias to float32, and the kernel for few rows takes 64."""
    config, layout = shipped("gpt-j-6b")
    sizes = {"num_rows": num_rows, "width": 64}
    assert tunes_gemms(config, layout, **sizes) is is_timed
    head = (num_rows + 50_400) * 4096 * 2 + 2 * num_rows * 50_400 * 4
    tuning = tuning_bytes(config, layout, num_tokens=8192, **sizes)
    assert tuning == (head if is_timed else 0), "the layers are one chain"


@pytest.mark.usefixtures("on_h200")
def test_gemms_of_layers_one_by_one_are_timed():
    config, layout = shipped("llama3-8b")
    with LAYER_PROGRAM.using("reference"):
        sizes = {"num_rows": 1, "width": 64}
        assert tunes_gemms(config, layout, **sizes)
        up = (8192 + 28_672) * 4096 * 2 + 2 * 8192 * 28_672 * 2
        assert tuning_bytes(config, layout, num_tokens=8192, **sizes) == up


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda p: p.stem)
def test_searches_are_in_the_chain_wherever_all_else_is(path: pathlib.Path):
    """By prompts read once, or by each beam where positions matter to attention."""
    config, layout = shipped(path.stem)
    sizes = {"num_rows": 16, "width": 64}
    assert layout.lent
    assert not tunes_gemms(config, layout, **sizes)
