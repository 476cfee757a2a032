"""Generation as one jitted call gives what the engine gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import SamplingParams
from fdjax.engine.engine import Engine
from fdjax.generate import loop
from fdjax.generate.plan import SamplingPlan, plan_of
from fdjax.generate.progress import GenerationProgress, GenerationRules
from fdjax.generate.sampling_state import init_state
from fdjax.generate.stopping import FinishReason
from tests.support.engines import GREEDY, PROMPTS, layout_of, run, tiny_model

NUM_TOKENS = 12
generate = jax.jit(
    loop.generate, donate_argnums=2, static_argnames=("plan", "num_tokens")
)


def batch(
    params: list[SamplingParams], plan: SamplingPlan
) -> tuple[GenerationRules, GenerationProgress]:
    """A batch of `PROMPTS` as a person without the engine would make it."""
    model = tiny_model()
    table = [[8, 2, 5], [0, 7, 1], [3, 6, 4]]
    state = init_state(
        params,
        PROMPTS,
        plan=plan,
        vocab_size=model.config.embedding.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        default_seeds=[0, 0, 0],
        num_rows=3,
    )
    rules = GenerationRules(jnp.asarray(table, jnp.int32), state.rules)
    kv = layout_of(model, num_pages=9, page_size=8).allocate()
    zeros, more_zeros = jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32)
    return rules, GenerationProgress(kv, zeros, more_zeros, state.progress)


def prompts() -> tuple[jax.Array, jax.Array]:
    tokens = np.zeros((3, 16), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    lengths = jnp.asarray([len(prompt) for prompt in PROMPTS], jnp.int32)
    return jnp.asarray(tokens), lengths


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_call_gives_what_the_engine_gives(engine: Engine, temperature: float):
    params = [
        SamplingParams(
            temperature=temperature, seed=row, max_tokens=NUM_TOKENS, ignore_eos=True
        )
        for row in range(3)
    ]
    plan = plan_of(params)
    rules, progress = batch(params, plan)
    progress, sampled = generate(
        tiny_model(), rules, progress, *prompts(), plan=plan, num_tokens=NUM_TOKENS
    )
    assert np.asarray(sampled.tokens).T.tolist() == run(engine, PROMPTS, params)
    held = [len(prompt) + NUM_TOKENS - 1 for prompt in PROMPTS]
    assert progress.lengths.tolist() == held


def test_one_token_is_what_the_prompts_give(engine: Engine):
    plan = plan_of([GREEDY] * 3)
    rules, progress = batch([GREEDY] * 3, plan)
    progress, sampled = generate(
        tiny_model(), rules, progress, *prompts(), plan=plan, num_tokens=1
    )
    first = [tokens[:1] for tokens in run(engine, PROMPTS)]
    assert np.asarray(sampled.tokens).T.tolist() == first
    assert progress.lengths.tolist() == [*map(len, PROMPTS)]


def test_a_finished_row_stands_still(engine: Engine):
    stop = run(engine, PROMPTS)[1][3]
    params = [
        GREEDY,
        SamplingParams(
            temperature=0.0,
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
            stop_token_ids=[stop],
        ),
        GREEDY,
    ]
    plan = plan_of(params)
    rules, progress = batch(params, plan)
    progress, sampled = generate(
        tiny_model(), rules, progress, *prompts(), plan=plan, num_tokens=NUM_TOKENS
    )
    finished = np.asarray(sampled.finished)[:, 1].tolist()
    steps = run(engine, [PROMPTS[1]], params[1])[0]
    assert finished == [FinishReason.RUNNING] * (len(steps) - 1) + [
        FinishReason.STOP
    ] * (NUM_TOKENS - len(steps) + 1)
    assert int(progress.lengths[1]) == len(PROMPTS[1]) + len(steps) - 1
