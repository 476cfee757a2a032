"""Which jobs hold rows and pages, and what runs next; nothing is computed here."""

from collections.abc import Sequence

import pytest

from fdjax import SamplingParams
from fdjax.engine.buckets import Buckets
from fdjax.engine.job import Chunk, Job
from fdjax.engine.request import make_request
from fdjax.engine.scheduler import Scheduler
from fdjax.memory.pages import PagePool
from fdjax.memory.prefix import PrefixKeys

PAGE_SIZE = 4


class Desk:
    """A scheduler of up to 4 rows, and jobs in the order they come."""

    def __init__(self, *, num_pages: int = 32, max_batched_tokens: int = 64) -> None:
        buckets = Buckets.of(
            max_num_seqs=4,
            max_model_len=32,
            page_size=PAGE_SIZE,
            max_batched_tokens=max_batched_tokens,
        )
        self.scheduler = Scheduler(
            PagePool(num_pages),
            buckets,
            page_size=PAGE_SIZE,
            caching=True,
            gathering=False,
        )
        self.jobs: list[Job] = []

    def add(self, length: int, *, output: int = 8, priority: int = 0) -> Job:
        """A job whose prompt begins like no other's."""
        place = len(self.jobs)
        prompt = [place] * length
        params = SamplingParams(temperature=0.0, max_tokens=output)
        request = make_request(
            place, prompt, params, vocab_size=100, max_model_len=32, grammar=None
        )
        keys = PrefixKeys(PAGE_SIZE)
        job = Job(request, priority, place, seed=0, keys=keys, tokens=list(prompt))
        self.jobs.append(job)
        self.scheduler.add(job)
        return job

    def running(self, *lengths: int, output: int = 8) -> list[Job]:
        """Jobs whose prompts are computed."""
        jobs = [self.add(length, output=output) for length in lengths]
        assert self.scheduler.admit() == jobs
        self.scheduler.chunks(1000)
        assert all(job.is_decoding for job in jobs)
        return jobs

    @property
    def num_free(self) -> int:
        return self.scheduler.pool.num_free


def spans(chunks: Sequence[Chunk]) -> list[tuple[int, int, int]]:
    return [(chunk.job.arrival, chunk.start, chunk.stop) for chunk in chunks]


# --- Admission ------------------------------------------------------------------------


def test_rows_and_pages_go_to_the_first_in_order():
    desk = Desk()
    for priority in (1, 0, 1, 0, 0):
        desk.add(5, priority=priority)
    admitted = desk.scheduler.admit()
    assert [job.arrival for job in admitted] == [1, 3, 4, 0]
    assert [job.row for job in admitted] == [0, 1, 2, 3]
    assert [page for job in admitted for page in job.pages] == list(range(8))
    assert desk.scheduler.num_waiting == 1


def test_nobody_overtakes_a_job_that_waits_for_pages():
    desk = Desk(num_pages=8)
    first, large, small = desk.add(16), desk.add(16), desk.add(1)
    # Its pages are there, but not one more for the job that runs.
    assert desk.scheduler.admit() == [first]
    assert desk.num_free == 4
    desk.scheduler.end(first)
    assert desk.scheduler.admit() == [large, small]


def test_what_has_ended_leaves_everything_behind():
    desk = Desk()
    runs, waits = *desk.running(9), desk.add(3)
    desk.scheduler.end(waits)
    desk.scheduler.end(runs)
    assert runs.ended and waits.ended
    assert (desk.num_free, desk.scheduler.num_waiting) == (32, 0)
    assert desk.scheduler.running == []
    assert desk.running(1)[0].row == 0


# --- Prefill --------------------------------------------------------------------------


def test_a_call_takes_what_fits_and_the_next_goes_on():
    desk = Desk(max_batched_tokens=16)
    for length in (10, 9, 3):
        desk.add(length)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(16)) == [(0, 0, 10), (1, 0, 6)]
    assert [job.is_decoding for job in desk.jobs] == [True, False, False]
    assert desk.scheduler.chunks(0) == []
    assert spans(desk.scheduler.chunks(5)) == [(1, 6, 9), (2, 0, 2)]
    assert spans(desk.scheduler.chunks(16)) == [(2, 2, 3)]
    assert desk.scheduler.chunks(16) == []
    assert [job.num_launched for job in desk.jobs] == [11, 10, 4]


# --- Decoding -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "steps", "held"), [(6, 3, [3, 3, 4, 5, 6]), (8, 4, [3, 4, 5, 6, 7])]
)
def test_pages_are_taken_when_the_next_steps_need_them(
    length: int, steps: int, held: list[int]
):
    """The last token made has no place of its own yet."""
    desk = Desk()
    (job,) = desk.running(length, output=21)
    seen: list[int] = []
    for _ in held:
        assert not desk.scheduler.lacking(steps)
        assert desk.scheduler.reserve(steps) == [job]
        seen.append(len(job.pages))
    assert seen == held
    assert job.num_launched == length + 1 + 5 * steps


def test_no_page_is_taken_beyond_the_last_token():
    desk = Desk()
    (job,) = desk.running(6, output=4)
    desk.scheduler.reserve(8)
    assert len(job.pages) == 3  # 9 tokens: the tenth and last is never read again
    assert not job.is_decoding
    assert desk.scheduler.reserve(8) == []


def test_the_last_in_order_gives_way_and_comes_back_first():
    desk = Desk(num_pages=5)
    first, second = desk.running(8, 7, output=12)
    waiting = desk.add(2)
    assert desk.scheduler.lacking(8)
    assert desk.scheduler.preempt() is second
    assert (second.row, second.pages, second.num_launched) == (None, [], 0)
    assert not desk.scheduler.lacking(8)
    assert desk.scheduler.reserve(8) == [first]
    assert desk.scheduler.admit() == []
    desk.scheduler.end(first)
    assert desk.scheduler.admit() == [second, waiting]
    assert desk.scheduler.num_preemptions == 1


@pytest.mark.parametrize(
    ("ended", "source"),
    [
        ((), None),  # four jobs need four rows
        ((3,), None),  # and so do three
        ((0, 1), [2, 3, 0, 1]),
        ((0, 2), [3, 1, 2, 0]),
        ((1, 2, 3), None),
        ((0, 1, 2), [3, 1, 2, 0]),
    ],
)
def test_rows_move_together_when_fewer_will_do(
    ended: tuple[int, ...], source: list[int] | None
):
    desk = Desk()
    jobs = desk.running(1, 1, 1, 1)
    before = {job: job.row for job in jobs}
    for place in ended:
        desk.scheduler.end(jobs[place])
    assert desk.scheduler.compaction() == source
    for job in desk.scheduler.running:
        assert job.row is not None
        assert (source or [0, 1, 2, 3])[job.row] == before[job]
    fresh = [desk.add(1) for _ in ended]
    assert desk.scheduler.admit() == fresh
    assert {job.row for job in desk.scheduler.running} == {0, 1, 2, 3}
