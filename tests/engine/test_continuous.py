"""Requests that come and go: what each gets never depends on the others."""

import dataclasses
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Sequence

import pytest

from fdjax import QueueFullError, RequestError, SamplingParams
from fdjax.engine import scheduler
from fdjax.engine import sequence as sequence_module
from fdjax.engine.engine import Engine
from fdjax.engine.limits import Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.engine.request import Increment
from fdjax.engine.results import AwaitedTokens
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.plan import serving_level
from tests.support.engines import GREEDY, PROMPTS, run, tiny_engine
from tests.support.soak import is_idle, soak

LONG = [int(token) for token in random.Random(0).choices(range(3, 120), k=24)]
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=9, ignore_eos=True)
PENALISED = dataclasses.replace(SEEDED, repetition_penalty=1.5, frequency_penalty=0.5)

each_plan = pytest.mark.parametrize(
    "params", [GREEDY, SEEDED, PENALISED], ids=["greedy", "drawn", "all"]
)


@pytest.fixture(scope="module")
def small() -> Engine:
    """Four rows, and pages for less than two of the longest sequences."""
    return tiny_engine(num_pages=6, steps_per_launch=2)


def add(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    priority: int = 0,
) -> EngineSequence:
    return engine.add(engine.request(0, prompt, params), Origin(priority=priority))


def finish(engine: Engine) -> dict[EngineSequence, list[int]]:
    """Steps until nothing is left to do; the tokens of each sequence."""
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    while engine.has_work:
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids
    return outputs


# --- Coming and going -----------------------------------------------------------------


def test_a_request_joins_those_that_run(engine: Engine):
    expected = [run(engine, [prompt])[0] for prompt in PROMPTS]
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    sequences: list[EngineSequence] = []
    for prompt in itertools.chain(PROMPTS, itertools.repeat(None)):
        if prompt is not None:
            sequences.append(add(engine, prompt))
        elif not engine.has_work:
            break
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids
    assert [outputs[sequence] for sequence in sequences] == expected
    assert is_idle(engine)


@each_plan
def test_a_job_that_is_parked_goes_on_where_it_was(
    engine: Engine, params: SamplingParams
):
    """Others have its row meanwhile; it may be parked while it waits, too."""
    expected = run(engine, [PROMPTS[0]], params) + run(engine, [PROMPTS[1]], params)
    first, second = (add(engine, prompt, params) for prompt in PROMPTS[:2])
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)

    def step() -> None:
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids

    for _ in range(3):
        engine.park(first)
        while engine.has_work and first.row is not None:
            step()
        engine.park(second)
        step()
        assert not engine.has_work
        engine.resume(first)
        engine.resume(second)
        step()
    while engine.has_work:
        step()
    assert [outputs[first], outputs[second]] == expected
    assert is_idle(engine)


def test_a_job_that_is_parked_can_be_aborted(engine: Engine):
    parked, asked = add(engine, PROMPTS[0]), add(engine, PROMPTS[1])
    engine.step()
    engine.park(parked)
    engine.step()
    engine.park(asked)
    for sequence in (parked, asked):
        engine.abort(sequence)
        engine.abort(sequence)
        engine.park(sequence)
        engine.resume(sequence)
    assert not engine.has_work
    assert is_idle(engine)


def test_a_reset_ends_jobs_that_are_parked_too(engine: Engine):
    parked, asked = add(engine, PROMPTS[0]), add(engine, PROMPTS[1])
    engine.step()
    engine.park(parked)
    engine.step()
    engine.park(asked)
    engine.reset()
    assert parked.ended and asked.ended
    engine.resume(parked)
    assert not engine.has_work
    assert is_idle(engine)


@each_plan
def test_rows_move_and_plans_change_under_a_request(
    engine: Engine, params: SamplingParams
):
    """Short requests of other kinds come and go in the rows before it."""
    (expected,) = run(engine, [PROMPTS[2]], params)
    short = [
        dataclasses.replace(kind, max_tokens=count)
        for count, kind in itertools.product((1, 3), (GREEDY, SEEDED, PENALISED))
    ]
    others = [add(engine, PROMPTS[0], one) for one in short[:3]]
    sequence = add(engine, PROMPTS[2], params)
    others += [add(engine, PROMPTS[1], one) for one in short[3:]]
    outputs = finish(engine)
    assert outputs[sequence] == expected
    assert [len(outputs[one]) for one in others] == [1, 1, 1, 3, 3, 3]
    assert is_idle(engine)


def test_what_a_request_asks_of_sampling_is_looked_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """However many others are let in while it runs."""
    looked: list[SamplingParams] = []

    def level(params: SamplingParams) -> int:
        looked.append(params)
        return serving_level(params)

    monkeypatch.setattr(sequence_module, "serving_level", level)
    lengths = (3, 5, 9)
    kinds = [GREEDY, SEEDED, PENALISED, SEEDED, GREEDY]
    for length, kind in itertools.product(lengths, kinds):
        add(engine, PROMPTS[0], dataclasses.replace(kind, max_tokens=length))
    finish(engine)
    assert len(looked) == len(lengths) * len(kinds)


def test_an_aborted_request_leaves_the_others_alone(engine: Engine):
    expected = [run(engine, [prompt])[0] for prompt in PROMPTS]
    sequences = [add(engine, prompt) for prompt in PROMPTS]
    waiting = [add(engine, PROMPTS[1]) for _ in range(6)]
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    while not outputs[sequences[1]]:
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids
    aborted = (sequences[1], *waiting)
    got = [len(outputs[sequence]) for sequence in aborted]
    for sequence in aborted:
        engine.abort(sequence)
        engine.abort(sequence)
    for sequence, tokens in finish(engine).items():
        outputs[sequence] += tokens
    assert [len(outputs[sequence]) for sequence in aborted] == got
    assert got[0] > 0
    assert not any(got[2:])
    assert [outputs[sequences[0]], outputs[sequences[2]]] == [expected[0], expected[2]]
    assert is_idle(engine)


def test_lower_priorities_go_first():
    engine = tiny_engine(max_num_seqs=1, steps_per_launch=2)
    sequences = [
        add(engine, PROMPTS[1], priority=priority) for priority in (2, 0, 1, 0)
    ]
    ended: list[EngineSequence] = []
    while engine.has_work:
        ended += [sequence for sequence, more in engine.step() if more.finish_reason]
    assert ended == [sequences[1], sequences[3], sequences[2], sequences[0]]


# --- Pages run out --------------------------------------------------------------------


@each_plan
def test_what_was_put_back_resumes_where_it_was(
    engine: Engine, small: Engine, params: SamplingParams
):
    params = dataclasses.replace(params, max_tokens=20)
    expected = [run(engine, [prompt], params)[0] for prompt in PROMPTS]
    before = small.scheduler.num_preemptions
    sequences = [add(small, prompt, params) for prompt in PROMPTS]
    outputs = finish(small)
    assert small.scheduler.num_preemptions > before
    assert [outputs[sequence] for sequence in sequences] == expected
    assert is_idle(small)


def test_putting_one_back_waits_for_nothing(
    small: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Of what was launched a step reads one, as all steps do that launch."""
    reads: list[int] = []
    read, step = small._pipeline._read, small._pipeline.step

    def counted(launch: AwaitedTokens) -> list[tuple[EngineSequence, Increment]]:
        reads[-1] += 1
        return read(launch)

    def noted() -> list[tuple[EngineSequence, Increment]]:
        reads.append(0)
        return step()

    monkeypatch.setattr(small._pipeline, "_read", counted)
    monkeypatch.setattr(small._pipeline, "step", noted)
    before = small.scheduler.num_preemptions
    sequences = [add(small, prompt, GREEDY) for prompt in (*PROMPTS, *PROMPTS)]
    outputs = finish(small)
    assert small.scheduler.num_preemptions > before
    assert all(len(outputs[sequence]) == GREEDY.max_tokens for sequence in sequences)
    assert max(reads[:-1]) == 1


def test_the_last_in_order_is_put_back(small: Engine):
    params = dataclasses.replace(GREEDY, max_tokens=20)
    sequences = [add(small, PROMPTS[2], params, priority=p) for p in (1, 0)]
    ended: list[EngineSequence] = []
    while small.has_work:
        ended += [sequence for sequence, more in small.step() if more.finish_reason]
    assert ended == [sequences[1], sequences[0]]


def test_a_request_beyond_the_whole_array_is_refused():
    engine = tiny_engine(num_pages=3)
    page = engine.plan.layout.page_bytes
    told = (
        f"need 4 pages of 8 tokens ({4 * page:,} bytes), but there are 3 ({3 * page:,}"
    )
    with pytest.raises(RequestError, match=re.escape(told)):
        add(engine, LONG[:20], dataclasses.replace(GREEDY, max_tokens=6))
    assert not engine.has_work


# --- Prefixes -------------------------------------------------------------------------


def test_a_prefix_is_computed_once(engine: Engine):
    engine.scheduler.pool.forget()
    prompts = [LONG[:17], LONG[:20], LONG[:16], LONG]
    before = engine.scheduler.prefixes.num_cached_tokens
    first = run(engine, prompts[:1])[0]
    assert engine.scheduler.prefixes.num_cached_tokens == before
    again = run(engine, prompts)
    # Whole pages of 8, and at least one token is computed.
    assert engine.scheduler.prefixes.num_cached_tokens == before + 16 + 16 + 8 + 16
    assert again[0] == first
    engine.scheduler.pool.forget()
    assert [run(engine, [prompt])[0] for prompt in prompts] == again


def test_samples_of_one_prompt_share_its_pages(engine: Engine):
    engine.scheduler.pool.forget()
    kinds = [dataclasses.replace(SEEDED, seed=seed) for seed in range(4)]
    before = engine.scheduler.prefixes.num_cached_tokens
    sequences = [add(engine, LONG[:17], kind) for kind in kinds]
    while not all(sequence.row is not None for sequence in sequences):
        engine.step()
    assert len({tuple(sequence.pages[:2]) for sequence in sequences}) == 1
    assert len({sequence.pages[2] for sequence in sequences}) == 4
    outputs = finish(engine)
    assert engine.scheduler.prefixes.num_cached_tokens == before + 3 * 16
    assert len({tuple(outputs[sequence]) for sequence in sequences}) == 4


def test_salts_share_nothing(engine: Engine):
    engine.scheduler.pool.forget()
    before = engine.scheduler.prefixes.num_cached_tokens
    for salt in (b"a", b"b"):
        engine.add(engine.request(0, LONG, GREEDY), Origin(salt=salt))
        finish(engine)
    assert engine.scheduler.prefixes.num_cached_tokens == before


def test_without_a_cache_nothing_is_found(engine: Engine):
    expected = run(engine, [LONG])
    bare = tiny_engine(prefix_caching=False)
    assert run(bare, [LONG, LONG]) == expected * 2
    assert run(bare, [LONG]) == expected
    assert bare.scheduler.prefixes.num_cached_tokens == 0
    assert bare.scheduler.prefixes.num_queried_tokens == 0, "nothing is looked up"


def test_long_prompts_go_in_chunks(engine: Engine):
    chunked = tiny_engine(max_batched_tokens=16)
    prompts = [LONG, *PROMPTS, LONG[3:]]
    assert chunked.buckets.step_tokens == 16
    assert run(chunked, prompts) == run(engine, prompts)


# --- Admission ------------------------------------------------------------------------


def test_a_full_queue_says_so():
    engine = tiny_engine(limits=QueueLimits(requests=2, tokens=10))
    sequences = [add(engine, [7] * 4), add(engine, [8] * 4)]
    with pytest.raises(QueueFullError, match="2 requests wait, and 2 may"):
        engine.check_queue(Load(1, 1, 1))
    engine.step()
    add(engine, [9] * 9)
    engine.check_queue(Load(1, 1, 1))
    with pytest.raises(QueueFullError, match=r"9 tokens wait, and 10 may; .* 2 more"):
        engine.check_queue(Load(1, 1, 2))
    with pytest.raises(RequestError, match=r"11 tokens .* max_queued_tokens is 10"):
        engine.check_queue(Load(1, 1, 11))
    assert len(finish(engine)) == 3
    assert all(sequence.ended for sequence in sequences)


# --- Everything at once ---------------------------------------------------------------


def test_hundreds_of_random_requests_leave_every_page_free(
    small: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Random lengths, tenants, priorities and arrivals; `tests.soak` has thousands.

    They give way to each other after two tokens: these are short.
    """
    monkeypatch.setattr(scheduler, "_QUANTUM", 2)
    done = soak(small, num_requests=300, seed=1)
    assert done.num_aborted > 0
    assert is_idle(small)
    assert list(done.differing(small)) == []
