"""The engine: results depend on the request alone, and pages always come back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import SamplingParams, UnifiedMax
from fdjax.engine.engine import Engine
from fdjax.engine.runs import Runs
from fdjax.models import random_weights
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.host_reads import no_host_reads

DRAWN = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
WIDE = UnifiedMax(0.0, -60.0, 60.0)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[list[int]]:
    """What each prompt gives when it runs by itself."""
    return [run(engine, [prompt])[0] for prompt in PROMPTS]


def all_free(engine: Engine) -> bool:
    return engine.scheduler.pool.num_free == engine.plan.layout.num_pages


def test_a_batch_gives_what_each_gives_alone(engine: Engine, alone: list[list[int]]):
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)
    assert run(engine, PROMPTS) == alone
    assert run(engine, PROMPTS[::-1]) == alone[::-1]


def test_more_requests_than_rows_keep_order_and_results(
    engine: Engine, alone: list[list[int]]
):
    prompts = [*PROMPTS, *PROMPTS, *PROMPTS]
    assert len(prompts) > engine.buckets.rows[-1]
    assert run(engine, prompts) == [*alone, *alone, *alone]
    assert all_free(engine)


@pytest.mark.parametrize("page_size", [5, 32])
def test_page_size_changes_nothing(page_size: int, alone: list[list[int]]):
    engine = tiny_engine(page_size=page_size, max_num_seqs=2)
    assert run(engine, PROMPTS) == alone


def test_what_pages_held_before_changes_nothing(engine: Engine, alone: list[list[int]]):
    engine.scheduler.pool.forget()
    kv = engine.executor.kv
    engine.executor.progress = dataclasses.replace(
        engine.executor.progress, kv=kv.with_array(jnp.full_like(kv.array, jnp.nan))
    )
    assert run(engine, PROMPTS) == alone


def test_which_pages_are_free_changes_nothing(engine: Engine, alone: list[list[int]]):
    taken = engine.scheduler.pool.take(9)
    engine.scheduler.pool.give_back(taken[::2])
    try:
        assert run(engine, PROMPTS) == alone
    finally:
        engine.scheduler.pool.give_back(taken[1::2])


@pytest.mark.parametrize(("gathering", "rows"), [(False, 3), (True, 1)])
def test_a_batch_spans_no_more_pages_than_can_be_gathered(gathering: bool, rows: int):
    engine = tiny_engine(num_pages=6)
    engine.scheduler._admission._gathering = gathering
    # A batch of 2 has page tables for 2 * 4 pages.
    for length, count in ((9, 12), (1, 4), (1, 4)):
        params = dataclasses.replace(GREEDY, max_tokens=count)
        engine.add(engine.request(0, [7] * length, params))
    assert len(engine.scheduler.admit()) == rows


def test_draws_depend_on_the_seed_and_not_on_the_batch(engine: Engine):
    seeded = [dataclasses.replace(DRAWN, seed=seed) for seed in (7, 8, 9)]
    together = run(engine, PROMPTS, seeded)
    alone = [
        run(engine, [prompt], [params])[0]
        for prompt, params in zip(PROMPTS, seeded, strict=True)
    ]
    assert together == alone


def test_unseeded_draws_differ(engine: Engine):
    first, second = run(engine, [PROMPTS[1], PROMPTS[1]], DRAWN)
    assert first != second
    assert run(engine, [PROMPTS[1]], DRAWN)[0] not in (first, second)


def test_an_end_token_ends_a_row_and_only_it(engine: Engine, alone: list[list[int]]):
    stop = alone[1][4]
    params = dataclasses.replace(GREEDY, stop_token_ids=[stop])
    ended = run(engine, PROMPTS, [GREEDY, params, GREEDY])
    assert ended == [alone[0], alone[1][: alone[1].index(stop) + 1], alone[2]]


def _told(engine: Engine, params: SamplingParams) -> list[list[tuple[int, float]]]:
    """Tokens that continue each prompt, with their log-probabilities."""
    requests = [engine.request(*one, params) for one in enumerate(PROMPTS)]
    told: list[list[tuple[int, float]]] = [[] for _ in requests]
    runs = Runs(engine)
    for _, increment in runs.follow(runs.add(requests)):
        assert increment.logprobs is not None
        values = (one.logprob for one in increment.logprobs)
        told[increment.index] += zip(increment.token_ids, values, strict=True)
    return told


@pytest.mark.parametrize("steps", [3, 16])
def test_how_many_steps_a_call_has_changes_nothing(alone: list[list[int]], steps: int):
    """Also where a token ends a row in the middle of one, whose row another takes."""
    params = dataclasses.replace(GREEDY, logprobs=0, stop_token_ids=[alone[1][4]])
    several, single = (
        _told(tiny_engine(max_num_seqs=2, steps_per_launch=n), params)
        for n in (steps, 1)
    )
    lengths = [len(each) for each in several]
    assert lengths[1] <= 5 < max(lengths)
    for ours, expected in zip(several, single, strict=True):
        assert ours == [
            (token, pytest.approx(logprob, abs=1e-4)) for token, logprob in expected
        ]


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 9, 10])
def test_exactly_as_many_tokens_as_wanted(
    engine: Engine, alone: list[list[int]], num_tokens: int
):
    params = dataclasses.replace(GREEDY, max_tokens=num_tokens)
    assert run(engine, [PROMPTS[0]], params) == [alone[0][:num_tokens]]


def test_a_sequence_may_fill_the_model(engine: Engine):
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (tokens,) = run(engine, [PROMPTS[1]], params)
    assert len(tokens) == engine.plan.max_model_len - len(PROMPTS[1])


@pytest.mark.parametrize(
    ("max_num_seqs", "max_model_len", "page_size"),
    [(2, 16, 16), (1, 32, 3)],  # more rows than one; prompts wider than page tables
)
def test_nothing_is_traced_after_warm_up(
    max_num_seqs: int, max_model_len: int, page_size: int
):
    engine = tiny_engine(
        shallow_model(),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        page_size=page_size,
    )
    greedy = dataclasses.replace(GREEDY, max_tokens=1)
    drawn = dataclasses.replace(DRAWN, max_tokens=3)
    seen: list[tuple[int, int]] = []
    count = engine.warm_up([greedy, drawn], on_progress=lambda *at: seen.append(at))
    # One by one, or where there are cores for it as test_ahead.py has it.
    assert seen == sorted(seen) and {count} == {in_all for _, in_all in seen}
    assert {done for done, _ in seen} >= {0, count}
    programs: Any = engine.executor.programs
    compiled = programs._extend._cache_size() + programs._decode._cache_size()
    # Beside these, what samples rows and what moves them, for each of two plans, and
    # what sends masks, and what changes the page table.
    others = len(engine.buckets.mask_rows) + 1
    assert count == compiled + 2 * 2 + others
    with jax.no_tracing(True):
        for length in range(1, max_model_len):
            run(engine, [[7] * length], greedy)
        run(engine, PROMPTS[:2], drawn)
        run(engine, PROMPTS, [greedy, drawn, greedy])
        run(engine, PROMPTS, dataclasses.replace(GREEDY, max_tokens=None))


def test_a_warm_up_without_a_word_is_for_anything():
    engine = tiny_engine(
        shallow_model(), max_num_seqs=1, max_model_len=16, page_size=16
    )
    engine.warm_up()
    everything = dataclasses.replace(
        DRAWN,
        logprobs=3,
        frequency_penalty=1.0,
        min_tokens=2,
        logit_bias={5: 1.0},
        allowed_token_ids=range(1, 99),
        bad_words=[[7], [8, 9]],
        prompt_logprobs=2,
    )
    with jax.no_tracing(True):
        for params in (everything, DRAWN, GREEDY):
            run(engine, PROMPTS[:2], params)


def test_no_transfer_happens_unasked(engine: Engine, alone: list[list[int]]):
    with no_host_reads():
        assert run(engine, PROMPTS) == alone


@pytest.mark.gpu
def test_no_transfer_happens_unasked_on_a_gpu():
    """Counts of the softmax among them, in launches of one step, as a GPU has them."""
    config = dataclasses.replace(shallow_model().config, unified=WIDE)
    model = random_weights(config, dtype=jnp.float32, seed=0)
    engine = tiny_engine(model, steps_per_launch=1)
    expected = run(engine, PROMPTS)
    with no_host_reads():
        assert run(engine, PROMPTS) == expected
        engine.statistics()
        assert engine.softmax_statistics().query_heads > 0
