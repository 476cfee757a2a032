"""Vectors of prompts: those of the pure functions, however they are computed."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fdjax import RequestError
from fdjax.engine.engine import Engine
from fdjax.engine.policy import StepPolicy
from fdjax.engine.request import Embedded, Increment
from fdjax.engine.runs import Runs
from fdjax.generate.any_params import AnyParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.weight import Dense
from fdjax.layers import prefill_batch
from fdjax.notation import Array
from tests.support.engines import GREEDY, PROMPTS, layout_of, run, tiny_engine
from tests.support.engines import tiny_model as model
from tests.support.numerics import assert_close

LAST = PoolingParams(normalize=False)
MEAN = PoolingParams(pooling="mean", normalize=False)
ANY = [LAST, MEAN, PoolingParams(), PoolingParams(pooling="mean", dimensions=5)]
REDUCTION = 64  # the hidden size


def followed(
    engine: Engine, prompts: Sequence[Sequence[int]], params: AnyParams
) -> list[Increment]:
    requests = [engine.request(i, prompt, params) for i, prompt in enumerate(prompts)]
    runs = Runs(engine)
    return [increment for _, increment in runs.follow(runs.add(requests))]


def vectors(engine: Engine, params: AnyParams) -> list[np.ndarray]:
    """Of `PROMPTS`."""
    found: dict[int, np.ndarray] = {}
    for increment in followed(engine, PROMPTS, params):
        assert isinstance(increment, Embedded)
        assert increment.finish_reason == FinishReason.STOP
        assert increment.index not in found
        found[increment.index] = increment.embedding
    return [found[index] for index in range(len(PROMPTS))]


def states(prompt: Sequence[int]) -> Array:
    """Hidden states `[S, E]` of one prompt, computed at once."""
    layout = layout_of(model(), num_pages=4, page_size=8)
    table = jnp.arange(4, dtype=jnp.int32)[None]
    tokens, length = jnp.asarray([prompt], jnp.int32), jnp.asarray([len(prompt)])
    batch = prefill_batch(tokens, length.astype(jnp.int32), table, page_size=8)
    return model()(layout.allocate(), batch)[0]


def expected(
    params: PoolingParams, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[np.ndarray]:
    wanted: list[np.ndarray] = []
    for prompt in prompts:
        all_states = np.asarray(states(prompt), np.float64)
        last = params.pooling == "last"
        vector = (all_states[-1] if last else all_states.mean(0))[: params.dimensions]
        length = np.linalg.norm(vector) if params.normalize else 1.0
        wanted.append((vector / length).astype(np.float32))
    return wanted


@pytest.mark.parametrize("params", ANY, ids=str)
def test_vectors_are_those_of_the_pure_function(engine: Engine, params: PoolingParams):
    for vector, wanted in zip(vectors(engine, params), expected(params), strict=True):
        assert vector.dtype == np.float32
        assert_close(jnp.asarray(vector), wanted, reduction=REDUCTION)
        if params.normalize:
            assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("params", [LAST, MEAN], ids=["last", "mean"])
def test_chunks_putting_back_and_others_change_nothing(params: PoolingParams):
    """Calls of 4 tokens; pages run out while the prompt is read in eight of them.

    They take turns with the other, which makes 8 tokens in each.
    """
    policy = StepPolicy(mixed=False)
    engine = tiny_engine(max_batched_tokens=4, num_pages=6, policy=policy)
    long = dataclasses.replace(GREEDY, max_tokens=28)
    alone = run(engine, PROMPTS[:1], long)
    engine.scheduler.pool.forget()
    prompt = [*range(1, 33)]
    many: list[tuple[list[int], AnyParams]] = [(PROMPTS[0], long)]
    many += [(prompt, params)]
    runs = Runs(engine)
    requests = [engine.request(i, *one) for i, one in enumerate(many)]
    came: list[list[Increment]] = [[] for _ in many]
    for _, increment in runs.follow(runs.add(requests)):
        came[increment.index].append(increment)
    *others, (pooled,) = came
    assert [
        [token for one in parts for token in one.token_ids] for parts in others
    ] == alone
    assert engine.scheduler.num_preemptions > 0
    assert isinstance(pooled, Embedded)
    (wanted,) = expected(params, [prompt])
    assert_close(jnp.asarray(pooled.embedding), wanted, reduction=REDUCTION)
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_pages


def test_cached_pages_stand_for_what_the_last_token_has_seen():
    engine = tiny_engine()
    prompt = [*range(1, 20)]
    (first,) = followed(engine, [prompt], LAST)
    cached = engine.scheduler.prefixes.num_cached_tokens
    (again,) = followed(engine, [prompt], LAST)
    assert engine.scheduler.prefixes.num_cached_tokens == cached + 16
    (mean,) = followed(engine, [prompt], MEAN)
    assert engine.scheduler.prefixes.num_cached_tokens == cached + 16, (
        "all tokens are computed"
    )
    assert isinstance(first, Embedded) and isinstance(again, Embedded)
    assert isinstance(mean, Embedded)
    assert_close(jnp.asarray(again.embedding), first.embedding, reduction=REDUCTION)
    whole = np.asarray(states(prompt), np.float64).mean(0).astype(np.float32)
    assert_close(jnp.asarray(mean.embedding), whole, reduction=REDUCTION)


def test_a_prompt_may_be_as_long_as_the_model_reads(engine: Engine):
    (increment,) = followed(engine, [[3] * 32], MEAN)
    assert isinstance(increment, Embedded)
    assert increment.embedding.shape == (engine.config.hidden_size,)
    with pytest.raises(RequestError, match="33 tokens, but max_model_len is 32; sho"):
        engine.request(0, [3] * 33, LAST)


def test_what_cannot_be_had_is_refused(engine: Engine):
    size = engine.config.hidden_size
    with pytest.raises(RequestError, match=f"dimensions is {size + 1}, but .* {size}"):
        engine.request(0, [1], PoolingParams(dimensions=size + 1))
    invariant = tiny_engine(model(batch_invariant=True))
    with pytest.raises(RequestError, match="pooling is 'mean'"):
        invariant.request(0, [1], MEAN)
    assert invariant.request(0, [1], LAST).pooling == LAST


def test_vectors_that_are_not_finite_fail_alone():
    poisoned = nnx.clone(model())
    table = poisoned.embed.weight.get_value().values
    poisoned.embed.weight.set_value(Dense(table.at[50].set(jnp.nan)))
    engine = tiny_engine(poisoned)
    fine, broken = followed(engine, [[1, 2], [1, 50, 3]], LAST)
    assert fine.finish_reason == FinishReason.STOP
    assert broken.finish_reason == FinishReason.NON_FINITE
