"""Compiles every program that an engine can need, by running it on nothing."""

from collections.abc import Callable, Iterator, Sequence

from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.job import Chunk, Job
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan
from fdjax.memory.kv import KVLayout
from fdjax.memory.prefix import PrefixKeys

_GREEDY = SamplingParams(temperature=0.0)

type _Call = Callable[[], object]


def warm_up(
    executor: Executor,
    buckets: Buckets,
    layout: KVLayout,
    plans: Sequence[SamplingPlan],
    *,
    longest: int,
    scored: bool,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Runs each program once, over rows and pages that do not exist.

    Args:
        executor: of an engine that has no work.
        buckets: its shapes.
        layout: of its KV array.
        plans: of sampling, to be ready for.
        longest: tokens of the longest sequence to be ready for.
        scored: prompts may be scored.
        on_progress: called with programs done, and programs in all.

    Returns:
        The number of programs.
    """
    decodes = list(_decodes(buckets, layout.pages_for(longest)))
    calls: list[_Call] = [
        _prefill(executor, buckets, tokens) for tokens in buckets.prefills
    ]
    calls += [_allow(executor, buckets, rows) for rows in buckets.mask_rows]
    if scored:
        calls.append(lambda: executor.score(_job(2, row=buckets.rows[-1]), 0, 1))
    for plan in plans:
        calls.append(_exchange(executor, buckets, plan))
        calls.append(_seat(executor, buckets))
        calls += [_decode(executor, layout, *shape) for shape in decodes]
    for done, call in enumerate(calls):
        if on_progress is not None:
            on_progress(done, len(calls))
        call()
    if on_progress is not None:
        on_progress(len(calls), len(calls))
    return len(calls)


def _prefill(executor: Executor, buckets: Buckets, tokens: int) -> _Call:
    """A call of prefill alone: its prompt is not complete."""
    job = _job(tokens + 1, row=buckets.rows[-1])
    return lambda: executor.prefill([Chunk(job, 0, tokens)])


def _exchange(executor: Executor, buckets: Buckets, plan: SamplingPlan) -> _Call:
    def call() -> None:
        executor.use(plan)
        executor.exchange(range(buckets.rows[-1]))

    return call


def _seat(executor: Executor, buckets: Buckets) -> _Call:
    """A call of the smallest prefill, and of what samples the first tokens."""
    tokens = buckets.prefills[0]
    job = _job(tokens, row=buckets.rows[-1])
    return lambda: executor.prefill([Chunk(job, 0, tokens)])


def _decode(executor: Executor, layout: KVLayout, rows: int, width: int) -> _Call:
    job = _job(1, row=rows - 1)
    job.pages = [layout.num_pages] * width
    return lambda: executor.decode([job])


def _allow(executor: Executor, buckets: Buckets, rows: int) -> _Call:
    """A call that changes masks, of rows that do not exist."""
    return lambda: executor.allow([buckets.rows[-1]] * rows, [])


def _decodes(buckets: Buckets, num_pages: int) -> Iterator[tuple[int, int]]:
    """Rows and page-table width of every decode call."""
    for rows in buckets.rows:
        for width in _up_to(buckets.widths, num_pages):
            yield rows, width


def _up_to(steps: tuple[int, ...], size: int) -> Iterator[int]:
    """The steps up to the first that is at least `size`."""
    for step in steps:
        yield step
        if step >= size:
            return


def _job(num_tokens: int, *, row: int) -> Job:
    """A job without pages."""
    request = Request(0, (0,), _GREEDY, 1)
    return Job(request, Origin(), 0, PrefixKeys(1), [0] * num_tokens, row=row)
