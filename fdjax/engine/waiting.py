"""`WaitingSequences`: who waits for a row, and who gets the next one. Host only."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import count

from fdjax.engine.levels import Level
from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.shares import Shares

# Rows that go to the most urgent priority before one goes to another.
_TURNS_OF_THE_URGENT = 7


class WaitingSequences:
    """Sequences without a row.

    The next row goes to the most urgent priority; there, to the tenant that holds the
    fewest rows; of that, to the request that holds the fewest; of that, to the sequence
    that came first. Whoever holds none goes by the time since which it has held none:
    nobody waits for one who came later, and is served, a second time.

    While several priorities wait, one row in eight goes to the priority that has had
    none for the longest time, and while it has the row the sequence is as urgent as the
    most urgent one that waits: a low priority slows a sequence down, and does not stop
    it.

    To add and to end a sequence takes the same time however many wait.

    Attributes:
        load: what waits.
        shares: of tenants; one that may hold no more rows is passed over.
        passes_searches: beam searches are passed over, for now.
    """

    def __init__(self) -> None:
        self.load = Load()
        # By priority; the one whose turn was longest ago is first.
        self._levels: OrderedDict[int, Level] = OrderedDict()
        self.passes_searches = False
        self._urgent_turns = 0
        self._turns = count()
        # Of a tenant by priority: urgent sequences of it are no reason to let others
        # wait.
        self._rows_of_tenant: Counter[tuple[int, str]] = Counter()
        self._rows_of_request: Counter[Origin] = Counter()
        self.shares = Shares()

    def __iter__(self) -> Iterator[EngineSequence]:
        """All sequences, in no particular order."""
        for level in self._levels.values():
            yield from level

    def push(self, sequence: EngineSequence) -> None:
        """Adds a new sequence, behind those that came before."""
        self._add(sequence, first=False)

    def put_back(self, sequence: EngineSequence) -> None:
        """Adds a sequence that has lost its row, before those that hold as few rows."""
        sequence.priority = sequence.origin.priority
        self._add(sequence, first=True)

    def remove(self, sequence: EngineSequence) -> None:
        """Takes a sequence out."""
        priority = sequence.origin.priority
        level = self._levels[priority]
        load = Load(int(level.remove(sequence)), 1, len(sequence.tokens))
        self.load = self.load.minus(load)
        self.shares.leave(sequence.origin, load)
        if level.is_empty:
            del self._levels[priority]

    def in_turn(self) -> Iterator[EngineSequence]:
        """Those that may have a row, the next one first, until one is taken out."""
        open_ = self._open()
        first = min(open_, default=0)
        if open_ and self._is_others_turn:
            first = open_[0]
        for priority in sorted(open_, key=lambda one: (one != first, one)):
            yield from self._levels[priority].in_turn(searches=not self.passes_searches)

    def take(self, sequence: EngineSequence) -> None:
        """Takes a sequence out; it has had its turn.

        If those that are more urgent, and whose turn it was, wait for something else,
        it is no more urgent than it was.
        """
        open_ = self._open()
        is_urgent = sequence.priority == min(open_)
        has_turn = is_urgent or self._is_others_turn
        if is_urgent and len(open_) > 1:
            self._urgent_turns += 1
        elif has_turn:
            self._urgent_turns = 0
        self._levels.move_to_end(sequence.priority)
        self.remove(sequence)
        if has_turn:
            sequence.priority = min(open_)
        if sequence.turn < 0:
            sequence.turn = next(self._turns)

    def seated(self, sequence: EngineSequence) -> None:
        """Counts the rows that a sequence has got."""
        self._count(sequence.origin, sequence.request.num_rows)

    def unseated(self, sequence: EngineSequence) -> None:
        """Counts the rows that a sequence has given up."""
        self._count(sequence.origin, -sequence.request.num_rows)

    def is_as_light(self, sequence: EngineSequence, other: EngineSequence) -> bool:
        """Whether a sequence's tenant holds no more rows than that of another one.

        Where both have one tenant, their requests are compared. The sequence is no less
        urgent, either. With one row more it would not have to give way to the other.
        """
        rows, others = self._rows(sequence.origin), self._rows(other.origin)
        same = sequence.origin.tenant == other.origin.tenant
        return (
            sequence.origin.priority <= other.origin.priority
            and rows[same] <= others[same]
        )

    def outweighing(
        self, running: Iterable[EngineSequence], waiting: EngineSequence
    ) -> list[EngineSequence]:
        """The sequences that should give up their rows for another's sake.

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
            sequence
            for sequence in running
            if sequence.priority >= waiting.priority
            and (
                self._rows_of_request[sequence.origin] > of_request
                if sequence.origin.tenant == origin.tenant
                else self._rows_of_tenant[_tenant(sequence.origin)] > of_tenant
            )
        ]

    def _add(self, sequence: EngineSequence, *, first: bool) -> None:
        origin = sequence.origin
        level = self._levels.get(origin.priority)
        if level is None:
            level = self._levels[origin.priority] = Level()
        is_only, is_new = level.add(sequence, first=first)
        load = Load(int(is_only), 1, len(sequence.tokens))
        self.load = self.load.plus(load)
        self.shares.come(origin, load)
        if is_new:
            self._grade(origin, first=first)

    def _open(self) -> list[int]:
        """Priorities of those that may have a row; the one longest without is first."""
        searches = not self.passes_searches
        return [
            priority
            for priority, level in self._levels.items()
            if level.is_open(searches=searches)
        ]

    @property
    def _is_others_turn(self) -> bool:
        """Of the priorities, but for the most urgent one."""
        return self._urgent_turns >= _TURNS_OF_THE_URGENT

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
