"""Calls overwrite the KV array's last pages, and nobody's tokens change by that."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from fdjax import PoolingParams, RequestError, SamplingParams
from fdjax.engine.borrowing import NOTHING_BORROWED, Borrowing, BorrowingCall
from fdjax.engine.engine import Engine
from fdjax.engine.kv_calls import MOVE_SIZES, KVCalls
from fdjax.engine.policy import StepPolicy
from fdjax.engine.request import Embedded
from fdjax.engine.runs import Runs
from tests.support.borrowing import Poisoned, TokensBorrow
from tests.support.engines import GREEDY, run, shallow_model, tiny_engine
from tests.support.host_reads import no_host_reads
from tests.support.soak import Asked, is_idle, soak

BORROWING = TokensBorrow(16)
PROMPTS = [[3 + i, *range(7, 7 + i)] for i in range(12)]


def engine_of(num_pages: int, *, caching: bool = True, borrows: bool = True) -> Engine:
    return tiny_engine(
        shallow_model(),
        num_pages=num_pages,
        page_size=4,
        steps_per_launch=2,
        max_batched_tokens=64,
        prefix_caching=caching,
        borrowing=BORROWING if borrows else NOTHING_BORROWED,
    )


@pytest.fixture(scope="module")
def undisturbed() -> Engine:
    """Calls borrow nothing, and there is a page for everybody."""
    return engine_of(64, borrows=False)


@pytest.mark.parametrize(
    ("asked", "caching"),
    [((0, "drawn", "formed"), True), ((0, "penalised"), False), ((0, 2, 3), True)],
    ids=["cached", "not-cached", "beams"],
)
def test_random_requests_get_what_they_get_undisturbed(
    asked: tuple[Asked, ...], caching: bool, undisturbed: Engine
):
    engine = engine_of(16 if 3 in asked else 12, caching=caching)
    poisoned = Poisoned(engine, BORROWING)
    done = soak(engine, num_requests=60, seed=5, asked=asked)
    assert poisoned.num_calls > 40
    now = engine.statistics()
    assert now.num_moved_pages > 0
    assert now.num_preemptions > 0 or 3 in asked
    assert is_idle(engine)
    assert (now.boundary, now.fragmentation) == (0, 0.0)
    assert list(done.differing(undisturbed)) == []


def test_sequences_are_put_back_for_room_and_fewer_tokens_go(undisturbed: Engine):
    """Three prompts hold 9 of 12 pages: 64 tokens, which borrow 4, have no room."""
    engine = engine_of(12, caching=False)
    Poisoned(engine, BORROWING)
    params = dataclasses.replace(GREEDY, max_tokens=12)
    prompts = [[5 + n, *range(20, 31)] for n in range(4)]
    assert run(engine, prompts, params) == run(undisturbed, prompts, params)
    assert engine.statistics().num_put_back_for_room > 0
    assert is_idle(engine)


def test_what_the_last_step_borrows_is_seen():
    """The call of a prompt, of a row that decodes, and of none."""
    engine = engine_of(12, caching=False)
    seen = [engine.statistics().num_borrowed_pages]
    engine.add(engine.request(0, list(range(3, 23)), GREEDY))
    while engine.has_work:
        engine.step()
        seen.append(engine.statistics().num_borrowed_pages)
    size = min(size for size in engine.buckets.prefills if size >= 20)
    assert seen[0] == 0
    assert seen[1] == BORROWING.pages("extend", size) > 1
    assert seen[2] == BORROWING.pages("decode", 1) == 1
    assert seen[-1] == 0, "nothing runs"


def test_the_longest_admitted_runs_alone_in_small_chunks(undisturbed: Engine):
    """Seven pages, and one that 16 tokens borrow, are all that there are."""
    engine = engine_of(8, caching=False)
    Poisoned(engine, BORROWING)
    params = dataclasses.replace(GREEDY, max_tokens=5)
    prompt = [list(range(3, 27))]
    assert run(engine, prompt, params) == run(undisturbed, prompt, params)
    params = dataclasses.replace(GREEDY, max_tokens=6)
    with pytest.raises(
        RequestError, match=r"8 pages of 4 .* beside 1 .* bytes\), but there are 8 \("
    ):
        engine.request(0, prompt[0], params)


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (
            GREEDY,
            r"^prompt 0 and its output .*; shorten the prompt, or lower max_token",
        ),
        (
            PoolingParams(),
            r"^prompt 0 needs 7 pages .* beside 4 .*; shorten the prompt$",
        ),
        (
            dataclasses.replace(GREEDY, max_tokens=1, prompt_logprobs=1),
            r"needs? 7 pages of 4 .* beside 4 .*, or leave out prompt_logprobs$",
        ),
    ],
    ids=["continued", "pooled", "scored"],
)
def test_a_refusal_tells_what_would_help(
    params: SamplingParams | PoolingParams, told: str
):
    """Where calls that score borrow more, a shorter output alone would not do."""
    with pytest.raises(RequestError, match=told):
        engine_of(8).request(0, [*range(3, 28)], params)


def test_what_one_call_has_taken_is_no_room_for_the_next():
    """Two prompts of 30 tokens: 32 go at first, and for the others 32 is too large."""
    borrowing, policy = TokensBorrow(4), StepPolicy(mixed=False)
    options: dict[str, Any] = {"max_batched_tokens": 64, "prefix_caching": False}
    options |= {"page_size": 4, "steps_per_launch": 2, "policy": policy}
    model, prompts = shallow_model(), [[3] * 30, [4] * 30]
    engine = tiny_engine(model, num_pages=21, borrowing=borrowing, **options)
    Poisoned(engine, borrowing)
    plain = tiny_engine(model, num_pages=64, borrowing=NOTHING_BORROWED, **options)
    params = dataclasses.replace(GREEDY, max_tokens=2)
    assert run(engine, prompts, params) == run(plain, prompts, params)
    assert is_idle(engine)


def test_a_move_waits_for_nothing_and_one_program_serves_every_boundary(
    undisturbed: Engine,
):
    """A step reads what was launched before it, never what it has launched itself."""
    engine = engine_of(12)
    engine.warm_up([GREEDY])
    requests = [engine.request(n, prompt, GREEDY) for n, prompt in enumerate(PROMPTS)]
    with jax.no_tracing(True), no_host_reads():
        sequences = [engine.add(request) for request in requests]
        outputs: list[list[int]] = [[] for _ in requests]
        boundaries: set[int] = set()
        while engine.has_work:
            for sequence, increment in engine.step():
                outputs[sequences.index(sequence)] += increment.token_ids
            boundaries.add(engine.scheduler.pool.boundary)
    assert engine.statistics().num_moved_pages > 0
    assert len(boundaries) > 3
    assert outputs == run(undisturbed, PROMPTS, GREEDY)


def test_parked_sequences_come_back_after_moves(undisturbed: Engine):
    engine = engine_of(12)
    Poisoned(engine, BORROWING)
    params = dataclasses.replace(GREEDY, max_tokens=12)
    requests = [engine.request(n, prompt, params) for n, prompt in enumerate(PROMPTS)]
    sequences = [engine.add(request) for request in requests]
    outputs: list[list[int]] = [[] for _ in requests]
    parked, steps = sequences[:3], 0
    while engine.has_work or parked:
        if steps == 4:
            for sequence in parked:
                engine.park(sequence)
        if steps == 14:
            for sequence in parked:
                engine.resume(sequence)
            parked = []
        for sequence, increment in engine.step():
            outputs[sequences.index(sequence)] += increment.token_ids
        steps += 1
    assert outputs == run(undisturbed, PROMPTS, params)
    assert engine.statistics().num_moved_pages > 0
    assert is_idle(engine)


def test_pooled_and_scored_prompts_borrow_too(undisturbed: Engine):
    scored = dataclasses.replace(GREEDY, max_tokens=3, prompt_logprobs=1)
    many = [PoolingParams() if n % 2 else scored for n in range(len(PROMPTS))]
    found: list[list[np.ndarray | list[int]]] = []
    for engine in (engine_of(14), undisturbed):
        if engine is not undisturbed:
            Poisoned(engine, BORROWING)
        requests = [
            engine.request(n, prompt, one)
            for n, (prompt, one) in enumerate(zip(PROMPTS, many, strict=True))
        ]
        of_engine: list[np.ndarray | list[int]] = [[] for _ in requests]
        runs = Runs(engine)
        for _, increment in runs.follow(runs.add(requests)):
            before = of_engine[increment.index]
            if isinstance(increment, Embedded):
                of_engine[increment.index] = np.asarray(increment.embedding)
            elif isinstance(before, list):
                before += increment.token_ids
        found.append(of_engine)
        assert is_idle(engine)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, MOVE_SIZES[0] + 1, 2 * MOVE_SIZES[-1] + 12])
def test_as_many_pages_are_moved_as_there_are(count: int):
    """Of more than a launch takes, several launches move all."""
    engine = engine_of(3 * count)
    calls = KVCalls(engine.executor.programs, engine.plan.layout, engine.buckets)
    cache = engine.executor.kv
    filled = np.random.default_rng(0).normal(size=cache.array.shape)
    kv = cache.with_array(jax.numpy.asarray(filled, cache.dtype))
    before = np.array(kv.array)
    moves = dict(zip(range(2 * count, 3 * count), range(count)[::-1], strict=True))
    after = np.array(calls.move(kv, moves).array)
    np.testing.assert_array_equal(after[[*moves.values()]], before[[*moves]])
    np.testing.assert_array_equal(after[count:], before[count:])


def test_no_move_is_compiled_after_the_start():
    engine, plain = engine_of(12), engine_of(12, borrows=False)
    params = [dataclasses.replace(GREEDY, max_tokens=12)]
    assert engine.warm_up(params) == plain.warm_up(params) + len(MOVE_SIZES)
    move: Any = engine.executor.programs.move.args[0]
    before = move._cache_size()
    run(engine, PROMPTS, params[0])
    assert engine.statistics().num_moved_pages > 0
    assert move._cache_size() == before


@pytest.mark.parametrize(("num_held", "tokens"), [(8, 64), (9, 32), (10, 32), (11, 16)])
def test_moving_is_preferred_to_fewer_tokens(num_held: int, tokens: int):
    """Of 12 pages, wherever those that are held lie; 64 tokens borrow 4."""
    engine = engine_of(12)
    room, pool = engine.scheduler.room, engine.scheduler.pool
    pages = pool.take(12)
    pool.give_back(pages[: 12 - num_held])
    assert pool.boundary == 12
    assert room.most_tokens(engine.scheduler.prompts) == tokens


def test_what_is_seated_leaves_room_for_a_step():
    """Two of 13 tokens hold 8 pages of 9, and one is for the next token."""
    engine = engine_of(9, caching=False)
    for prompt in ([3] * 13, [4] * 13):
        engine.add(engine.request(0, prompt, GREEDY))
    assert len(engine.scheduler.admit()) == 1
    plain = engine_of(9, caching=False, borrows=False)
    for prompt in ([3] * 13, [4] * 13):
        plain.add(plain.request(0, prompt, GREEDY))
    assert len(plain.scheduler.admit()) == 2


class OnlyScored:
    """Calls that score prompts borrow pages, and others next to nothing."""

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        return 8 if call == "score" else min(num_tokens, 1)


def test_none_is_let_in_where_a_prompt_that_is_scored_has_room():
    """It would be put back before it has computed anything."""
    engine = tiny_engine(
        shallow_model(),
        num_pages=18,
        page_size=4,
        max_num_seqs=4,
        max_batched_tokens=4,
        borrowing=OnlyScored(),
    )
    scored = dataclasses.replace(GREEDY, max_tokens=2, prompt_logprobs=1)
    engine.add(engine.request(0, list(range(1, 28)), scored))
    for first in range(3):
        params = dataclasses.replace(GREEDY, max_tokens=20)
        engine.add(engine.request(0, [first + 1, 2, 3, 4], params))
    while engine.has_work:
        engine.step()
    assert engine.statistics().num_preemptions <= 2
    assert is_idle(engine)


@pytest.mark.parametrize("borrowing", [NOTHING_BORROWED, OnlyScored()])
def test_more_rows_decode_than_a_call_has_tokens(borrowing: Borrowing):
    """Others are let in as they end, one by one."""
    engine = tiny_engine(
        shallow_model(),
        num_pages=64,
        page_size=4,
        max_num_seqs=8,
        max_batched_tokens=4,
        steps_per_launch=1,
        borrowing=borrowing,
    )
    lengths = [20 - 2 * (count % 7) for count in range(24)]
    for count, length in enumerate(lengths):
        params = dataclasses.replace(GREEDY, max_tokens=length)
        engine.add(engine.request(0, [count + 1, 2, 3], params))
    made, most = 0, 0
    while engine.has_work:
        made += sum(len(new.token_ids) for _, new in engine.step())
        most = max(most, len(engine.scheduler.decoding))
    assert made == sum(lengths) and most > 4
    assert is_idle(engine)
