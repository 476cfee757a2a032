"""`BeamJobs`: the running jobs that are beam searches, and the pages of their beams."""

from fdjax.engine.job import Job
from fdjax.memory.pages import PagePool


class BeamJobs:
    """Few among many, as in `FormedJobs`.

    Args:
        page_size: tokens of a page.
    """

    def __init__(self, page_size: int) -> None:
        self._jobs: list[Job] = []
        self._page_size = page_size

    def __len__(self) -> int:
        """How many run."""
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Takes a job that runs now, if it is one."""
        if job.group is not None:
            self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """Forgets a job that runs no more."""
        if job.group is not None:
            self._jobs.remove(job)

    def missing(self) -> int:
        """Pages that all lack for their next steps."""
        return sum(self._missing(job) for job in self._jobs if job.is_searching)

    def reserve(self, pool: PagePool) -> list[Job]:
        """Takes these pages, which are there; the jobs are launched then."""
        jobs = [job for job in self._jobs if job.is_searching]
        for job in jobs:
            assert job.group is not None
            job.group.grow(pool.take(self._missing(job)))
            job.launch(1)
        return jobs

    def _missing(self, job: Job) -> int:
        """A step feeds the last tokens chosen; a response begins on its own page."""
        assert job.group is not None
        fed = job.num_launched - job.num_prompt
        return job.group.missing(-(-fed // self._page_size))
