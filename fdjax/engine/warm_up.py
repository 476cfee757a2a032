"""Compiles every program that an engine can need, by running it on nothing."""

from collections.abc import Iterable, Iterator

from fdjax.engine.buckets import Buckets
from fdjax.engine.executor import Executor
from fdjax.engine.job import Chunk, Job
from fdjax.engine.request import Request
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import SamplingPlan
from fdjax.memory.kv import KVLayout
from fdjax.memory.prefix import PrefixKeys

_GREEDY = SamplingParams(temperature=0.0)


def warm_up(
    executor: Executor,
    buckets: Buckets,
    layout: KVLayout,
    plans: Iterable[SamplingPlan],
    *,
    longest: int,
) -> int:
    """Runs each program once, over rows and pages that do not exist.

    Args:
        executor: of an engine that has no work.
        buckets: its shapes.
        layout: of its KV array.
        plans: of sampling, to be ready for.
        longest: tokens of the longest sequence to be ready for.

    Returns:
        The number of programs run.
    """
    count = 0
    for index, plan in enumerate(plans):
        executor.use(plan)
        executor.exchange(range(buckets.rows[-1]))
        shapes = _prefills(buckets, longest) if index == 0 else _seats(buckets)
        for rows, tokens, start in shapes:
            job = _job(start + tokens, row=buckets.rows[-1])
            executor.prefill([Chunk(job, start, start + tokens)] * rows)
            count += 2 if index == 0 else 1
        for rows, width in _decodes(buckets, layout.pages_for(longest)):
            job = _job(1, row=rows - 1)
            job.pages = [layout.num_pages] * width
            executor.decode([job])
            count += 1
        count += 1
    return count


def _prefills(buckets: Buckets, longest: int) -> Iterator[tuple[int, int, int]]:
    """Rows, tokens and start of every prefill call."""
    for tokens in _up_to(buckets.prompts, longest):
        if tokens > buckets.longest_chunk:
            return
        most = buckets.prefill_rows(tokens, buckets.rows[-1])
        for rows in (step for step in buckets.rows if step <= most):
            yield rows, tokens, 0
        for rows in {1, most}:
            yield rows, tokens, 1


def _seats(buckets: Buckets) -> Iterator[tuple[int, int, int]]:
    """The cheapest prefill call of each number of rows."""
    tokens = buckets.prompts[0]
    most = buckets.prefill_rows(tokens, buckets.rows[-1])
    return ((rows, tokens, 0) for rows in buckets.rows if rows <= most)


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
    return Job(request, 0, 0, 0, PrefixKeys(1), [0] * num_tokens, row=row)
