"""The decode program updates the KV array in place: no copy of it exists."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import device
from fdjax.engine import programs
from fdjax.engine.engine import Engine
from fdjax.engine.workspace import page_workspace_bytes
from fdjax.generate.row_pages import RowPages
from tests.support.engines import PROMPTS, run, shallow_model, tiny_engine

# So many pages that one copy of the array outweighs everything else in the program.
NUM_PAGES = 4096


def shape_of(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


@pytest.fixture(scope="module")
def compiled() -> tuple[Engine, jax.stages.Compiled]:
    """The decode program of two rows over a large KV array; nothing is run."""
    engine = tiny_engine(num_pages=NUM_PAGES)
    executor = engine.executor
    state = jax.tree.map(shape_of, (executor.rules, executor.progress))
    steps = jax.ShapeDtypeStruct((2,), jnp.int32)
    changes, counts = jnp.zeros((3, 2), jnp.int32), jnp.zeros(2, jnp.int32)
    pages = RowPages(changes, counts, engine.buckets.widths[-1])
    lowered = executor.programs.lower_decode(*state, pages, steps, plan=executor.plan)
    return engine, lowered.compile()


def test_the_kv_array_stays_where_it_is(engine: Engine):
    run(engine, PROMPTS)
    before = engine.executor.kv.array.unsafe_buffer_pointer()
    run(engine, [*PROMPTS, *PROMPTS])
    assert engine.executor.kv.array.unsafe_buffer_pointer() == before


def test_the_kv_array_is_an_alias(compiled: tuple[Engine, jax.stages.Compiled]):
    engine, program = compiled
    analysis = program.memory_analysis()
    assert analysis is not None
    assert analysis.alias_size_in_bytes >= engine.plan.layout.nbytes


def test_temporaries_are_what_the_plan_allows(
    compiled: tuple[Engine, jax.stages.Compiled],
):
    engine, program = compiled
    analysis = program.memory_analysis()
    assert analysis is not None
    page = page_workspace_bytes(
        engine.config, engine.plan.layout, num_rows=2, max_model_len=32
    )
    gathered = 2 * engine.buckets.widths[-1] * page
    assert analysis.temp_size_in_bytes <= gathered + 2**20
    assert analysis.temp_size_in_bytes < engine.plan.layout.nbytes / 50


def test_nothing_copies_the_kv_array(compiled: tuple[Engine, jax.stages.Compiled]):
    engine, program = compiled
    sizes = ",".join(map(str, engine.plan.layout.shape))
    text = program.as_text()
    assert text is not None
    assert f"f32[{sizes}]" in text
    copies = re.findall(rf"f32\[{sizes}\]\S* copy\(", text)
    assert copies == []


@pytest.mark.parametrize("tunes_gemms", [True, False])
def test_programs_are_compiled_without_timing_where_no_gemm_is_xlas(
    tunes_gemms: bool, monkeypatch: pytest.MonkeyPatch
):
    """All that run the model: the memory plan counts nothing for it then."""
    jit, found = jax.jit, dict[str, Any]()

    def noted(function: Callable[..., Any], **given: Any) -> Any:
        found[function.__name__] = given.get("compiler_options")
        return jit(function, **given)

    def noted_beams(functions: object, options: object) -> None:
        del functions
        found["beams"] = options

    monkeypatch.setattr(device, "platform", lambda: "gpu")
    monkeypatch.setattr(programs, "BeamPrograms", noted_beams)
    monkeypatch.setattr(jax, "jit", noted)
    programs.Programs(shallow_model(), steps_per_launch=1, tunes_gemms=tunes_gemms)
    expected = {} if tunes_gemms else {"xla_gpu_autotune_level": 0}
    rows = ("extend_rows", "sample_rows", "row_logits", "decode_rows")
    for name in (*rows, "score_tokens", "pool_tokens", "beams"):
        assert found[name] == expected
