"""Jobs that wait until somebody takes what they have made."""

from fdjax.engine.job import Job
from fdjax.engine.scheduler import Scheduler


class Parking:
    """Parks jobs: they hold neither a row nor pages, and are in no queue.

    Like those that were put back, they resume with the tokens that they have made.

    Args:
        scheduler: whose jobs they are.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asked: set[Job] = set()
        self._parked: set[Job] = set()

    @property
    def is_asked(self) -> bool:
        """Some job is to be parked."""
        return bool(self._asked)

    @property
    def num_parked(self) -> int:
        """Jobs that are parked."""
        return len(self._parked)

    def ask(self, job: Job) -> None:
        """Has a job parked by the next `park`, if it has not ended and is not yet."""
        if not job.ended and job not in self._parked:
            self._asked.add(job)

    def park(self) -> None:
        """Parks what was asked for; everything launched must have been read."""
        for job in self._asked:
            if job.ended:
                continue
            if job.row is None:
                self._scheduler.waiting.remove(job)
            else:
                self._scheduler.release(job)
                job.wait()
            self._parked.add(job)
        self._asked.clear()

    def resume(self, job: Job) -> None:
        """Puts a job back into the queue, if it is parked."""
        self._asked.discard(job)
        if job in self._parked:
            self._parked.remove(job)
            self._scheduler.waiting.put_back(job)

    def end(self, job: Job) -> None:
        """Ends a job, wherever it is."""
        self._asked.discard(job)
        if job in self._parked:
            self._parked.remove(job)
            job.ended = True
        elif not job.ended:
            self._scheduler.end(job)

    def clear(self) -> None:
        """Ends all jobs that are parked, and parks no others."""
        for job in self._parked:
            job.ended = True
        self._parked.clear()
        self._asked.clear()
