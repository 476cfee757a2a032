"""What rows share is found when they come and go, and changes no token."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from fdjax.engine import shared_reads
from fdjax.engine.engine import Engine
from fdjax.engine.policy import StepPolicy
from fdjax.engine.shared_reads import SharedReads
from fdjax.generate.params import SamplingParams
from fdjax.generate.row_pages import RowPages
from fdjax.kernels import ffi
from fdjax.kernels.paged import SharedPrefixes
from fdjax.kernels.shared_prefix import find_groups, table
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE
from fdjax.kernels.shared_prefix.table import Worth
from tests.support.borrowing import Poisoned, TokensBorrow
from tests.support.engines import run, tiny_engine, tiny_model
from tests.support.host_reads import no_host_reads
from tests.support.read_once import reading_once

SYSTEM = [7, 9, 11, 13] * 5
PAGE = 8


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups of a few tokens, too; and they are read once, as on a GPU."""
    monkeypatch.setattr(table.PART, "find", lambda: Worth(1, 1))
    with reading_once():
        yield


def engine(*, shared: bool) -> Engine:
    return tiny_engine(
        max_model_len=48,
        steps_per_launch=1,
        policy=StepPolicy(shared_reads=shared),
    )


type Call = tuple[np.ndarray, SharedPrefixes | None]


def watched(over: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Page tables, as the host has them, and prefixes of all decode calls."""
    calls: list[Call] = []
    decode = over.executor.programs.decode

    def noted(
        rules: Any,
        progress: Any,
        pages: RowPages,
        steps: Any,
        prefixes: SharedPrefixes | None,
        **named: Any,
    ) -> Any:
        calls.append((over.executor.table.first(len(steps)).copy(), prefixes))
        return decode(rules, progress, pages, steps, prefixes, **named)

    monkeypatch.setattr(over.executor.programs, "decode", noted)
    return calls


def prompts(count: int) -> list[list[int]]:
    return [[*SYSTEM, *range(20, 21 + n)] for n in range(count)]


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def test_rows_of_one_system_prompt_read_it_once(monkeypatch: pytest.MonkeyPatch):
    over = engine(shared=True)
    run(over, prompts(1))  # its pages are in the cache now
    calls = watched(over, monkeypatch)
    outputs = run(over, prompts(4))
    assert outputs == run(engine(shared=False), prompts(4))
    shared = [prefixes for _, prefixes in calls if prefixes is not None]
    assert shared
    assert max(int(np.max(np.asarray(p.tokens))) for p in shared) == 16, "two pages"
    assert len({id(prefixes) for prefixes in shared}) < len(calls), "kept between steps"


def test_what_is_said_to_be_shared_always_is(monkeypatch: pytest.MonkeyPatch):
    """Over rows that come and go, each call's prefixes fit its page table."""
    over = engine(shared=True)
    calls = watched(over, monkeypatch)
    random = np.random.default_rng(0)
    starts = [SYSTEM, [3, 1, 4, 1, 5, 9, 2, 6] * 2, []]
    waiting = [
        (
            [*starts[random.integers(3)], *random.integers(3, 90, 3).tolist()],
            greedy(int(random.integers(1, 16))),
        )
        for _ in range(24)
    ]
    sequences: list[Any] = []
    while True:
        if waiting:
            prompt, params = waiting.pop()
            sequences.append(over.add(over.request(0, prompt, params)))
        over.step()
        if not waiting and all(sequence.ended for sequence in sequences):
            break
    checked = 0
    for pages, prefixes in calls:
        if prefixes is None:
            continue
        tokens, order = np.asarray(prefixes.tokens), np.asarray(prefixes.order)
        for piece in np.asarray(prefixes.work):
            leader, first, _, count, begin, end = piece[:6]
            span = slice(begin // PAGE, -(-end // PAGE))
            for row in order[first : first + count]:
                checked += 1
                assert np.array_equal(pages[row, span], pages[leader, span])
                assert tokens[row] >= end
    assert checked > 20


def test_pages_are_looked_at_where_two_rows_begin_alike(
    monkeypatch: pytest.MonkeyPatch,
):
    looked: list[int] = []

    def noted(*given: Any, **named: Any) -> Any:
        looked.append(len(given[1]))
        return find_groups(*given, **named)

    monkeypatch.setattr(shared_reads, "find_groups", noted)
    over = engine(shared=True)
    run(over, [[first, *SYSTEM] for first in range(20, 24)], greedy(12))
    assert looked == []
    run(over, prompts(1))
    run(over, prompts(4), greedy(12))
    assert looked


def test_shared_pages_that_were_moved_are_read_where_they_are():
    """Those who share them come back for others at the array's end."""
    borrowing = TokensBorrow(16)
    over = tiny_engine(
        max_model_len=48,
        num_pages=20,
        max_batched_tokens=64,
        steps_per_launch=1,
        policy=StepPolicy(shared_reads=True),
        borrowing=borrowing,
    )
    Poisoned(over, borrowing)
    pool = over.scheduler.pool
    below = pool.take(10)
    sequences = [over.add(over.request(0, one, greedy(8))) for one in prompts(3)]
    outputs: list[list[int]] = [[] for _ in sequences]
    while over.has_work:
        if below and all(len(sequence.output) > 1 for sequence in sequences):
            pool.give_back(below)
            below = []
            running = over.scheduler.running
            moves = over.scheduler.room.clear(10, running)  # all that they hold
            assert len(moves) == sum(len(one.pages) for one in running) - 2 * 2
            over.executor.move(moves)
        for sequence, increment in over.step():
            outputs[sequences.index(sequence)] += increment.token_ids
    assert not below
    assert outputs == run(engine(shared=False), prompts(3), greedy(8))


def test_rows_that_cannot_share_enough_have_no_program(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(table.PART, "find", lambda: Worth(1, 3 * 48))
    over = engine(shared=True)
    reads, width = over.executor.shared_reads, over.buckets.widths[-1]
    assert reads is not None
    assert width * PAGE == 48
    assert [reads.may_find(rows, width) for rows in (1, 3, 4)] == [False, False, True]
    none = tiny_engine(max_model_len=48, steps_per_launch=1)
    more = sum(reads.may_find(rows, width) for rows in over.buckets.rows)
    assert over.warm_up([greedy(9)]) == none.warm_up([greedy(9)]) + more


def test_by_default_it_is_where_a_gpu_has_the_kernels(monkeypatch: pytest.MonkeyPatch):
    tiny = tiny_engine(max_model_len=48)
    plan, wanted = tiny.plan, SharedReads.wanted
    assert not wanted(None, tiny.config, plan)
    assert tiny.executor.shared_reads is None
    monkeypatch.setattr(ffi, "refuse", lambda name, platform: None)
    small, large = (
        replace(plan, layout=replace(plan.layout, page_size=size))
        for size in (LEAST_SHARED_PAGE - 1, LEAST_SHARED_PAGE)
    )
    assert not wanted(None, tiny.config, small)
    assert wanted(None, tiny.config, large)
    assert not wanted(False, tiny.config, large)
    assert wanted(True, tiny.config, small)
    # Float32, and heads that no kernel takes: each row's pages are copied.
    gathering = replace(large, page_workspace_bytes=1)
    assert not wanted(None, tiny.config, gathering)
    assert not wanted(True, tiny.config, gathering)
    # What a row gets must not depend on others, or positions matter.
    invariant = replace(tiny.config, batch_invariant=True)
    assert not wanted(True, invariant, large)


def test_nothing_is_traced_after_warm_up(monkeypatch: pytest.MonkeyPatch):
    over = engine(shared=True)
    over.warm_up([greedy(9)])
    calls = watched(over, monkeypatch)
    with jax.no_tracing(True), no_host_reads():
        sequences = [over.add(over.request(0, one, greedy(9))) for one in prompts(5)]
        while not all(sequence.ended for sequence in sequences):
            over.step()
    assert any(prefixes is not None for _, prefixes in calls)
    assert any(prefixes is None for _, prefixes in calls)


def test_only_models_in_which_positions_do_not_matter_share_reads():
    assert SharedReads.suit(tiny_model("llama").config)
    assert not SharedReads.suit(tiny_model("bloom").config), "ALiBi"
    assert not SharedReads.suit(tiny_model("llama", batch_invariant=True).config)
