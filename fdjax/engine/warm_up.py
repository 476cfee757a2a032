"""Compiles every program that an engine can need, by running it on nothing."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol, runtime_checkable

import numpy as np

from fdjax.engine.ahead import (
    Collected,
    Lower,
    compiled,
    default_threads,
)
from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.in_turn import ExecutorCall, InTurn, wait_for
from fdjax.engine.kv_calls import MOVE_SIZES
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.shared_reads import SharedReads
from fdjax.garbage import old_objects_apart
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SERVING_PLANS, SamplingPlan, serving_plan
from fdjax.generate.pooling_params import PoolingParams
from fdjax.memory.kv import KVLayout
from fdjax.memory.prefix import PrefixKeys

_GREEDY = SamplingParams(temperature=0.0)


@runtime_checkable
class Awake(Protocol):
    """Whether the weights and the KV array are there."""

    def __call__(self, *, wait: bool = False) -> bool:
        """The same, or waits until they are."""
        ...


def _from_the_start(*, wait: bool = False) -> bool:
    del wait
    return True


def warm_up(
    executor: Executor,
    buckets: Buckets,
    layout: KVLayout,
    params: Sequence[SamplingParams | PoolingParams] | None,
    *,
    longest: int,
    moves: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
    awake: Awake = _from_the_start,
) -> int:
    """Runs each program once, over rows and pages that do not exist.

    Where there are cores for it, they are compiled beside each other, and run while
    others are traced.

    Args:
        executor: of an engine that has no work.
        buckets: its shapes.
        layout: of its KV array.
        params: what requests will ask for; `None`: anything.
        longest: tokens of the longest sequence to be ready for.
        moves: pages are moved.
        on_progress: called with programs done, and programs in all; one that was
            compiled ahead is done.
        threads: that compile; `None`: by the number of cores.
        awake: whether programs can run already.

    Returns:
        The number of programs.
    """
    wanted, scored, pooled = set(SERVING_PLANS), True, True
    if params is not None:
        sampled = [one for one in params if isinstance(one, SamplingParams)]
        wanted = {serving_plan([one]) for one in sampled}
        scored = any(one.prompt_logprobs is not None for one in sampled)
        pooled = len(sampled) < len(params)
    plans = [plan for plan in SERVING_PLANS if plan in wanted]
    decodes = list(_decodes(buckets, layout.pages_for(longest)))
    # Prompts are computed with the first plan, whose sampling takes least.
    calls: list[ExecutorCall] = [_sample(executor, plan) for plan in reversed(plans)]
    calls += [_extend(executor, tokens) for tokens in buckets.prefills]
    calls += [_allow(executor, buckets, rows) for rows in buckets.mask_rows]
    calls.append(_place(executor))
    if moves:
        calls += [_move(executor, layout, size) for size in MOVE_SIZES]
    if scored:
        calls.append(lambda: executor.score(_sequence(2, row=buckets.rows[-1]), 0, 1))
    if pooled:
        calls += [_pool(executor, buckets, tokens) for tokens in buckets.pooled]
    for plan in plans:
        calls.append(_exchange(executor, buckets, plan))
        counts = executor.pace.counts
        calls += [_decode(executor, *shape, n) for shape in decodes for n in counts]
        if executor.shared_reads is not None:
            reads = executor.shared_reads
            widest = buckets.widths[-1]
            rows = [n for n in buckets.rows if reads.may_find(n, widest)]
            shapes = itertools.product(rows, counts)
            calls += [_decode_shared(executor, reads, *shape) for shape in shapes]
    report = on_progress or (lambda done, in_all: None)
    threads = default_threads() if threads is None else threads
    if executor.programs.tunes_gemms:
        threads = 0  # what XLA times, it times alone
    with old_objects_apart():
        _run(executor, calls, threads, lambda done: report(done, len(calls)), awake)
    executor.forget_counts()
    report(len(calls), len(calls))
    return len(calls)


def _run(
    executor: Executor,
    calls: Sequence[ExecutorCall],
    threads: int,
    report: Callable[[int], None],
    awake: Awake,
) -> None:
    """Runs all calls in order; with threads, they are compiled ahead.

    Nothing is reported before they can run.
    """
    if threads > 1:
        lowerings = _lowerings(executor, calls)
        compiling = closing(compiled(lowerings, threads))
        with compiling as counts, InTurn(executor, calls) as runs:
            for num_compiled in counts:
                if awake():
                    report(num_compiled)
                    runs.begin(num_compiled)
            awake(wait=True)
            report(len(calls))
            runs.begin(len(calls))
        return
    awake(wait=True)
    for done, call in enumerate(calls):
        report(done)
        wait_for(executor)
        call()
    wait_for(executor)


def _lowerings(executor: Executor, calls: Sequence[ExecutorCall]) -> list[Lower | None]:
    """What lowers the program of each call; `None` where there is none to compile."""
    found: list[Lower | None] = []
    with executor.programs.ahead.collecting() as lowerings:
        for call in calls:
            try:
                call()
            except Collected:
                found.append(lowerings[-1])
            else:
                found.append(None)
    return found


def _sample(executor: Executor, plan: SamplingPlan) -> ExecutorCall:
    def call() -> None:
        executor.use(plan)
        executor.sample_nobody()

    return call


def _extend(executor: Executor, tokens: int) -> ExecutorCall:
    """A call of so many tokens, whose prompt is not complete."""
    sequence = _sequence(tokens + 1, row=0)
    return lambda: executor.extend([], [PromptChunk(sequence, 0, tokens)])


def _pool(executor: Executor, buckets: Buckets, tokens: int) -> ExecutorCall:
    sequence = _sequence(tokens + 1, row=buckets.rows[-1])
    return lambda: executor.pool([PromptChunk(sequence, 0, tokens)])


def _move(executor: Executor, layout: KVLayout, size: int) -> ExecutorCall:
    """A call that moves pages which do not exist."""
    absent = layout.num_pages
    return lambda: executor.move({absent + page: absent for page in range(size)})


def _place(executor: Executor) -> ExecutorCall:
    """A call that changes nothing in the page table."""
    return lambda: executor.place(np.zeros((3, 0), np.int32))


def _exchange(executor: Executor, buckets: Buckets, plan: SamplingPlan) -> ExecutorCall:
    def call() -> None:
        executor.use(plan)
        executor.exchange(range(buckets.rows[-1]))

    return call


def _decode(executor: Executor, rows: int, width: int, count: int) -> ExecutorCall:
    sequence = _sequence(1, row=rows - 1)
    return lambda: executor.decode([sequence], width=width, steps_each=count)


def _decode_shared(
    executor: Executor, reads: SharedReads, rows: int, count: int
) -> ExecutorCall:
    sequence = _sequence(1, row=rows - 1)
    return lambda: executor.decode(
        [sequence], prefixes=reads.none(rows), steps_each=count
    )


def _allow(executor: Executor, buckets: Buckets, rows: int) -> ExecutorCall:
    """A call that changes masks, of rows that do not exist."""
    return lambda: executor.allow([buckets.rows[-1]] * rows, [])


def _decodes(buckets: Buckets, num_pages: int) -> Iterator[tuple[int, int]]:
    """Rows and page-table width of every decode call."""
    for rows in buckets.rows:
        for width in _up_to(buckets.decode_widths(rows), num_pages):
            yield rows, width


def _up_to(steps: tuple[int, ...], size: int) -> Iterator[int]:
    """The steps up to the first that is at least `size`."""
    for step in steps:
        yield step
        if step >= size:
            return


def _sequence(num_tokens: int, *, row: int) -> EngineSequence:
    """A sequence without pages: a call that is only lowered would lose their places."""
    request = Request(0, (0,), _GREEDY, 1)
    return EngineSequence(
        request, Origin(), 0, PrefixKeys(1), [0] * num_tokens, row=row
    )
