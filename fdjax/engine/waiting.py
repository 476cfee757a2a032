"""`WaitingJobs`: who waits for a row, and who is the next to get one. Host only."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import count

from fdjax.engine.job import Job
from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.shares import Shares
from fdjax.engine.turns import Turns

# Rows that go to the most urgent priority before one goes to another.
_TURNS_OF_THE_URGENT = 7


class WaitingJobs:
    """Jobs without a row.

    The next row goes to the most urgent priority; there, to the tenant that holds the
    fewest rows; of that, to the request that holds the fewest; of that, to the job that
    came first. Whoever holds none goes by the time since which it has held none: nobody
    waits for one who came later, and is served, a second time.

    While several priorities wait, one row in eight goes to the priority that has had
    none for the longest time, and while it has the row the job is as urgent as the most
    urgent one that waits: a low priority slows a job down, and does not stop it.

    To add and to end a job takes the same time however many wait.

    Attributes:
        load: what waits.
        shares: of tenants; one that may hold no more rows is passed over.
    """

    def __init__(self) -> None:
        self.load = Load()
        # By priority; the one whose turn was longest ago is first.
        self._levels: OrderedDict[int, _Level] = OrderedDict()
        self._urgent_turns = 0
        self._turns = count()
        # Of a tenant by priority: urgent jobs of it are no reason to let others wait.
        self._rows_of_tenant: Counter[tuple[int, str]] = Counter()
        self._rows_of_request: Counter[Origin] = Counter()
        self.shares = Shares()

    def __iter__(self) -> Iterator[Job]:
        """All jobs, in no particular order."""
        for level in self._levels.values():
            for jobs in level.jobs.values():
                yield from jobs

    def push(self, job: Job) -> None:
        """Adds a new job, behind those that came before."""
        self._add(job, first=False)

    def put_back(self, job: Job) -> None:
        """Adds a job that has lost its row, before those that hold as few rows."""
        job.priority = job.origin.priority
        self._add(job, first=True)

    def remove(self, job: Job) -> None:
        """Takes a job out."""
        priority = job.origin.priority
        level = self._levels[priority]
        load = Load(int(level.remove(job)), 1, len(job.tokens))
        self.load = self.load.minus(load)
        self.shares.leave(job.origin, load)
        if not level.jobs:
            del self._levels[priority]

    def peek(self) -> Job | None:
        """The next job; `None` if none waits that may have a row."""
        level = self._next_level()
        return level and level.next()

    def pop(self) -> Job:
        """Takes the next job out; it has had its turn."""
        level, open_ = self._next_level(), self._open()
        assert level is not None, "a job was seen that may have a row"
        job, urgent = level.next(), min(open_)
        if job.priority == urgent and len(open_) > 1:
            self._urgent_turns += 1
        else:
            self._urgent_turns = 0
        self._levels.move_to_end(job.priority)
        self.remove(job)
        job.priority = urgent
        if job.turn < 0:
            job.turn = next(self._turns)
        return job

    def seated(self, job: Job) -> None:
        """Counts the rows that a job has got."""
        self._count(job.origin, job.request.num_rows)

    def unseated(self, job: Job) -> None:
        """Counts the rows that a job has given up."""
        self._count(job.origin, -job.request.num_rows)

    def outweighing(self, running: Iterable[Job], waiting: Job) -> list[Job]:
        """The jobs that should give up their rows for another's sake.

        Their tenant, or their request where both have one tenant, would still hold no
        fewer rows than the other's with this one: so nobody takes turns in a row.
        """
        origin = waiting.origin
        of_tenant, of_request = (rows + 1 for rows in self._rows(origin))
        if (
            max(self._rows_of_tenant.values(), default=0) <= of_tenant
            and max(self._rows_of_request.values(), default=0) <= of_request
        ):
            return []
        return [
            job
            for job in running
            if job.priority >= waiting.priority
            and (
                self._rows_of_request[job.origin] > of_request
                if job.origin.tenant == origin.tenant
                else self._rows_of_tenant[_tenant(job.origin)] > of_tenant
            )
        ]

    def _add(self, job: Job, *, first: bool) -> None:
        origin = job.origin
        level = self._levels.get(origin.priority)
        if level is None:
            level = self._levels[origin.priority] = _Level()
        is_new = level.add(job, first=first)
        load = Load(int(is_new), 1, len(job.tokens))
        self.load = self.load.plus(load)
        self.shares.come(origin, load)
        if is_new or first:
            self._grade(origin, first=first)

    def _open(self) -> list[int]:
        """Priorities of jobs that may have a row; the one longest without is first."""
        return [priority for priority, level in self._levels.items() if level.is_open]

    def _next_level(self) -> "_Level | None":
        open_ = self._open()
        if not open_:
            return None
        others_turn = self._urgent_turns >= _TURNS_OF_THE_URGENT
        return self._levels[open_[0] if others_turn else min(open_)]

    def _count(self, origin: Origin, change: int) -> None:
        self._rows_of_tenant[_tenant(origin)] += change
        self._rows_of_request[origin] += change
        rows = self._rows(origin)
        if not rows[0]:
            del self._rows_of_tenant[_tenant(origin)]
        if not rows[1]:
            del self._rows_of_request[origin]
        self.shares.hold(origin, change)
        self._grade(origin)

    def _grade(self, origin: Origin, *, first: bool = False) -> None:
        """Gives a tenant and its request their places, where they wait."""
        tenant, share = origin.tenant, self.shares.of(origin.tenant)
        if level := self._levels.get(origin.priority):
            level.grade(origin, self._rows(origin), first=first)
        if share.max_running is None:
            return
        for priority, level in self._levels.items():
            rows = self._rows_of_tenant[priority, tenant]
            level.place(tenant, None if share.is_full else rows)

    def _rows(self, origin: Origin) -> tuple[int, int]:
        """Of the tenant, and of the request."""
        return self._rows_of_tenant[_tenant(origin)], self._rows_of_request[origin]


def _tenant(origin: Origin) -> tuple[int, str]:
    return origin.priority, origin.tenant


class _Level:
    """Jobs of one priority, by request, and the turns of requests and of tenants."""

    def __init__(self) -> None:
        self.jobs: dict[Origin, OrderedDict[Job, None]] = {}
        self._requests: dict[str, Turns[Origin]] = {}
        self._tenants: Turns[str] = Turns()

    @property
    def is_open(self) -> bool:
        """Some tenant here may have a row."""
        return bool(self._tenants)

    def add(self, job: Job, *, first: bool) -> bool:
        """Adds a job; whether it is the only one of its request. `grade` follows."""
        jobs = self.jobs.setdefault(job.origin, OrderedDict())
        jobs[job] = None
        if first:
            jobs.move_to_end(job, last=False)
        return len(jobs) == 1

    def remove(self, job: Job) -> bool:
        """Takes a job out; whether it was the only one of its request."""
        origin = job.origin
        jobs = self.jobs[origin]
        del jobs[job]
        if jobs:
            return False
        del self.jobs[origin]
        requests = self._requests[origin.tenant]
        requests.drop(origin)
        if not requests:
            del self._requests[origin.tenant]
            self._tenants.drop(origin.tenant)
        return True

    def next(self) -> Job:
        """Whose turn it is."""
        origin = self._requests[self._tenants.next()].next()
        return next(iter(self.jobs[origin]))

    def grade(
        self, origin: Origin, rows: tuple[int, int], *, first: bool = False
    ) -> None:
        """Gives a tenant and its request their places, where they wait here."""
        of_tenant, of_request = rows
        if origin in self.jobs:
            requests = self._requests.setdefault(origin.tenant, Turns())
            requests.put(origin, of_request, first=first)
        self.place(origin.tenant, of_tenant)

    def place(self, tenant: str, rows: int | None) -> None:
        """Gives a tenant its place, if it waits here; `None` passes it over."""
        if rows is None:
            self._tenants.drop(tenant)
        elif tenant in self._requests:
            self._tenants.put(tenant, rows)
