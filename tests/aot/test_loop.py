"""Several decode steps of one launch, compiled for an H200: nobody waits in between."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import serving_plan
from fdjax.generate.progress import GenerationProgress, decode_rows
from fdjax.generate.row_pages import RowPages
from fdjax.generate.sampling_state import SamplingState, init_state
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3.2-1b.json"
ROWS, WIDTH, STEPS = 8, 16, 4
LOOP = re.compile(r" while\(.*")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def test_the_host_knows_how_many_steps_there_are():
    """Else it would wait for each: XLA copies a loop's condition to it."""
    config = ModelConfig.from_hf(json.loads(MODEL.read_text()))
    plan = serving_plan([SamplingParams(temperature=0.0)])
    state: SamplingState = jax.eval_shape(
        functools.partial(
            init_state,
            [SamplingParams(temperature=0.0)] * ROWS,
            [()] * ROWS,
            plan=plan,
            vocab_size=config.embedding.vocab_size,
            eos_token_ids=(1,),
            default_seeds=range(ROWS),
            num_rows=ROWS,
        )
    )
    ints = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    table = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.int32)
    layout = config.kv_layout(num_pages=64, page_size=16, dtype=jnp.bfloat16)
    progress = jax.eval_shape(
        functools.partial(GenerationProgress, softmax=None),
        jax.eval_shape(layout.allocate),
        ints,
        ints,
        state.progress,
        table=table,
    )
    pages = jax.eval_shape(
        lambda lengths: RowPages(jnp.zeros((3, 0), jnp.int32), lengths, WIDTH), ints
    )
    compiled = compile_for_h200(
        functools.partial(decode_rows, plan=plan, num_steps=STEPS, all_steps=True),
        Decoder(config, jnp.bfloat16),
        state.rules,
        progress,
        pages,
        ints,
        donate_argnums=(2,),
    )
    loops = LOOP.findall(compiled.as_text() or "")
    assert [TRIPS.findall(loop) for loop in loops] == [[str(STEPS)]]
