"""`Scheduler`: which jobs hold rows and pages, and what runs next. Host only."""

from collections.abc import Sequence

from fdjax.engine.beam_jobs import BeamJobs
from fdjax.engine.buckets import Buckets, smallest_fitting
from fdjax.engine.formed import FormedJobs
from fdjax.engine.job import Chunk, Job
from fdjax.engine.limits import Load
from fdjax.engine.rows import FreeRows
from fdjax.engine.turns import in_turn
from fdjax.engine.waiting import WaitingJobs
from fdjax.generate.stopping import FinishReason
from fdjax.memory.pages import PagePool

# Tokens that a job makes before it gives way for fairness: computing it anew is little.
_QUANTUM = 32


class Scheduler:
    """Jobs that wait, and jobs that hold a row and pages.

    A job is let in when a row is free and its tokens' pages are; pages for what it
    makes are taken step by step. When they run out, the job that is last in order
    (`in_turn`) goes back to the queue and is computed anew later: a full KV array slows
    requests down, and fails none. So does a job of whoever holds the most rows, when
    somebody waits who holds fewer.

    Args:
        pool: the pages.
        buckets: shapes; the last of its rows is how many there are.
        page_size: tokens of a page.
        caching: pages of earlier requests may be found and shared.
        gathering: decode calls copy their pages, and there is room for all once.
    """

    def __init__(
        self,
        pool: PagePool,
        buckets: Buckets,
        *,
        page_size: int,
        caching: bool,
        gathering: bool,
    ) -> None:
        self.pool = pool
        self.running: list[Job] = []
        self.formed = FormedJobs()
        self.beams = BeamJobs(page_size)
        self.num_preemptions = 0
        self.num_queried_tokens = self.num_cached_tokens = 0
        self._buckets = buckets
        self._page_size = page_size
        self._caching = caching
        self._gathering = gathering
        self.waiting = WaitingJobs()
        self.shares = self.waiting.shares
        self._rows = FreeRows(buckets.rows)
        self._kept_out: Job | None = None
        # Keys of pages that running jobs will fill by prefill.
        self._coming: dict[bytes, Job] = {}

    @property
    def num_waiting(self) -> int:
        """Jobs without a row."""
        return self.waiting.load.samples

    @property
    def load(self) -> Load:
        """What waits for rows."""
        return self.waiting.load

    def add(self, job: Job) -> None:
        """Puts a job into the queue."""
        self.waiting.push(job)

    def end(self, job: Job) -> None:
        """Takes a job out, from wherever it is; its row and pages are free."""
        job.ended = True
        if job.row is None:
            self.waiting.remove(job)
        else:
            self.release(job)

    def clear(self) -> list[Job]:
        """Takes all jobs out and forgets what pages hold; returns the jobs."""
        jobs = [*self.running, *self.waiting]
        for job in jobs:
            self.end(job)
        self.pool.forget()
        return jobs

    def admit(self) -> list[Job]:
        """Gives rows and pages to the jobs at the head of the queue, while there are.

        Returns:
            The jobs let in.
        """
        admitted: list[Job] = []
        self._kept_out = None
        while job := self.waiting.peek():
            has_rows = job.request.num_rows <= len(self._rows)
            found = self._found(job) if has_rows else []
            if found is None:
                break
            if not has_rows or not self._seat(job, found):
                self._kept_out = job
                break
            admitted.append(job)
        return admitted

    def chunks(self, room: int) -> list[Chunk]:
        """What the next prefill call computes, in turn.

        A call takes whole prompts, or parts of them.

        Args:
            room: tokens that it may have.
        """
        jobs = [job for job in self.running if job.is_prefilling]
        if not jobs or room <= 0:
            return []
        jobs = in_turn(jobs)[: self._buckets.prefill_rows]
        waiting = sum(len(job.tokens) - job.num_prefilled for job in jobs)
        left = min(self._buckets.prefill_tokens(min(waiting, room)), room)
        chunks: list[Chunk] = []
        for job in jobs:
            stop = min(len(job.tokens), job.num_prefilled + left)
            chunks.append(Chunk(job, job.num_prefilled, stop))
            left -= chunks[-1].size
            job.num_prefilled = stop
            if chunks[-1].is_last:
                job.launch(stop + 1)
            self.remember(job)
            if not left:
                break
        return chunks

    def settle(self, *, wait: bool) -> list[tuple[Job, FinishReason]]:
        """See `FormedJobs.settle`; the jobs returned have ended."""
        ended = self.formed.settle(wait=wait)
        for job, _ in ended:
            self.end(job)
        return ended

    def lacking(self, num_steps: int) -> bool:
        """Whether pages are too few for `num_steps` more steps of all decoding jobs."""
        most = self._pages_for(num_steps) + 1
        if most * self._rows.num_held <= self.pool.num_free:
            return False
        wanted = sum(self._missing(job, num_steps) for job in self._decoding())
        return wanted + self.beams.missing() > self.pool.num_free

    def preempt(self) -> Job:
        """Puts the running job that is last in order back into the queue.

        Everything launched must have been read: what a job has made is what it resumes
        with.
        """
        return self._put_back(in_turn(self.running)[-1])

    def giving_way(self) -> Job | None:
        """The running job whose place whoever waits first should have, if one."""
        waiting = self._kept_out
        if waiting is None or waiting.ended:
            return None
        jobs = [
            job
            for job in self.waiting.outweighing(self.running, waiting)
            if len(job.tokens) - job.num_let_in >= _QUANTUM
        ]
        return in_turn(jobs)[-1] if jobs else None

    def give_way(self) -> None:
        """Puts that job back into the queue; as for `preempt`, everything was read."""
        if (job := self.giving_way()) is not None:
            self._put_back(job)
            self._kept_out = None

    def reserve(self, num_steps: int) -> list[Job]:
        """Takes the pages of `num_steps` more steps; `lacking` has said that it can.

        Returns:
            The jobs that the next launch decodes.
        """
        jobs = self._decoding()
        for job in jobs:
            steps = job.steps_of(num_steps)
            if job.num_launched - 1 + steps > len(job.pages) * self._page_size:
                job.pages += self.pool.take(self._missing(job, num_steps))
            job.launch(steps)
        return jobs

    def remember(self, job: Job) -> None:
        """Makes findable the pages that the job has filled with tokens that are known.

        The last token read is not yet in the KV array.
        """
        # Asked for every token of every row: most of them fill no page.
        if (
            not self._caching
            or len(job.tokens) // self._page_size <= job.num_remembered
        ):
            return
        in_kv = min(job.num_prefilled, len(job.tokens))
        if job.num_launched:
            in_kv = max(in_kv, len(job.tokens) - 1)
        job.keys.extend(job.tokens)
        for place in range(job.num_remembered, in_kv // self._page_size):
            key = job.keys.keys[place]
            self.pool.remember(job.pages[place], key)
            self._arrived(key, job)
            job.num_remembered = place + 1

    def compaction(self) -> list[int] | None:
        """See `FreeRows.compact`."""
        return self._rows.compact(self.running)

    def _decoding(self) -> list[Job]:
        return [job for job in self.running if job.is_decoding]

    def _missing(self, job: Job, num_steps: int) -> int:
        """Pages a job lacks for its part of `num_steps` more steps."""
        in_kv = job.num_launched - 1 + job.steps_of(num_steps)
        needed = self._pages_for(min(in_kv, job.request.num_kv_tokens))
        return max(needed - len(job.pages), 0)

    def _arrived(self, key: bytes, job: Job) -> None:
        if self._coming.get(key) is job:
            del self._coming[key]

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)

    def _found(self, job: Job) -> list[int] | None:
        """Pages with the beginning of the job's tokens; at least one token is left.

        Returns:
            `None` where the next page is being computed by another job: it is worth
            waiting for.
        """
        if not (self._caching and job.reads_cache):
            return []
        job.keys.extend(job.tokens)
        found: list[int] = []
        for key in job.keys.keys[: (len(job.tokens) - 1) // self._page_size]:
            page = self.pool.find(key)
            if page is None:
                return None if key in self._coming else found
            found.append(page)
        return found

    def _seat(self, job: Job, found: Sequence[int]) -> bool:
        if self._gathering and not self._gatherable(job):
            return False
        self.pool.share(found)
        missing = self._pages_for(len(job.tokens)) - len(found)
        # Room for one more page of each row that is held already, and for the first
        # ones of beams, or it would be put back as soon as it is let in.
        crowd = self._rows.num_held + (job.group.width if job.group else 0)
        if missing + crowd > self.pool.num_free and self.running:
            self.pool.give_back(found)
            return False
        job.pages = [*found, *self.pool.take(missing)]
        job.num_prefilled = len(found) * self._page_size
        job.num_remembered = len(found)
        job.num_let_in = len(job.tokens)
        job.row = self._rows.take(job)
        self.waiting.pop()
        self.waiting.seated(job)
        self.running.append(job)
        self.formed.add(job)
        self.beams.add(job)
        for key in job.keys.keys[len(found) :]:
            self._coming.setdefault(key, job)
        self.num_queried_tokens += len(job.tokens) if self._caching else 0
        self.num_cached_tokens += job.num_prefilled
        return True

    def _gatherable(self, job: Job) -> bool:
        """Whether the pages of a batch with the job too can be copied."""
        rows = smallest_fitting(self._buckets.rows, len(self.running) + 1)
        tokens = max(one.request.num_kv_tokens for one in [*self.running, job])
        width = smallest_fitting(self._buckets.widths, self._pages_for(tokens))
        return rows == 1 or rows * width <= self.pool.num_pages

    def release(self, job: Job) -> None:
        """Takes a running job's row and pages; it is in no queue."""
        assert job.row is not None
        for key in job.keys.keys:
            self._arrived(key, job)
        self.pool.give_back(job.pages + (job.group.held if job.group else []))
        self._rows.give_back(job)
        self.running.remove(job)
        self.formed.remove(job)
        self.beams.remove(job)
        self.waiting.unseated(job)

    def _put_back(self, job: Job) -> Job:
        self.release(job)
        job.wait()
        self.waiting.put_back(job)
        self.num_preemptions += 1
        return job
