"""`FormedJobs`: the running jobs with a matcher, which cannot be launched ahead."""

from fdjax.engine.job import Job
from fdjax.generate.stopping import FinishReason


class FormedJobs:
    """Few among many: so that a step need not ask every job whether it is one."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    @property
    def any_held(self) -> bool:
        """Some job waits for its token to be read and its matcher to take it."""
        return any(job.held for job in self._jobs)

    def add(self, job: Job) -> None:
        """Takes a job that runs now, if it has a matcher."""
        if job.matcher is not None:
            self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """Forgets a job that runs no more."""
        if job.matcher is not None:
            self._jobs.remove(job)

    def settle(self, *, wait: bool) -> list[tuple[Job, FinishReason]]:
        """Lets jobs go on whose matchers know what may follow the last token.

        Args:
            wait: for those that do not know it yet; else they are left as they are.

        Returns:
            Jobs that nothing may follow, and why; somebody ends them.
        """
        ended: list[tuple[Job, FinishReason]] = []
        for job in self._jobs:
            if job.matcher is None or not (job.held and job.is_read):
                continue
            if wait or job.matcher.is_ready:
                job.held = False
                reason = job.matcher.finish_reason
                if reason != FinishReason.RUNNING:
                    ended.append((job, reason))
        return ended
