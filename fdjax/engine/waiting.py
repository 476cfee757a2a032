"""`WaitingSequences`: who waits for a row, and who gets the next one. Host only."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import count

from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.shares import Shares
from fdjax.engine.turns import Turns

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
    """

    def __init__(self) -> None:
        self.load = Load()
        # By priority; the one whose turn was longest ago is first.
        self._levels: OrderedDict[int, _Level] = OrderedDict()
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
            for sequences in level.sequences.values():
                yield from sequences

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
        if not level.sequences:
            del self._levels[priority]

    def peek(self) -> EngineSequence | None:
        """The next sequence; `None` if none waits that may have a row."""
        level = self._next_level()
        return level and level.next()

    def pop(self) -> EngineSequence:
        """Takes the next sequence out; it has had its turn."""
        level, open_ = self._next_level(), self._open()
        assert level is not None, "a sequence was seen that may have a row"
        sequence, urgent = level.next(), min(open_)
        if sequence.priority == urgent and len(open_) > 1:
            self._urgent_turns += 1
        else:
            self._urgent_turns = 0
        self._levels.move_to_end(sequence.priority)
        self.remove(sequence)
        sequence.priority = urgent
        if sequence.turn < 0:
            sequence.turn = next(self._turns)
        return sequence

    def seated(self, sequence: EngineSequence) -> None:
        """Counts the rows that a sequence has got."""
        self._count(sequence.origin, sequence.request.num_rows)

    def unseated(self, sequence: EngineSequence) -> None:
        """Counts the rows that a sequence has given up."""
        self._count(sequence.origin, -sequence.request.num_rows)

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
            level = self._levels[origin.priority] = _Level()
        is_new = level.add(sequence, first=first)
        load = Load(int(is_new), 1, len(sequence.tokens))
        self.load = self.load.plus(load)
        self.shares.come(origin, load)
        if is_new or first:
            self._grade(origin, first=first)

    def _open(self) -> list[int]:
        """Priorities of those that may have a row; the one longest without is first."""
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
    """Those of one priority, by request, and the turns of requests and of tenants."""

    def __init__(self) -> None:
        self.sequences: dict[Origin, OrderedDict[EngineSequence, None]] = {}
        self._requests: dict[str, Turns[Origin]] = {}
        self._tenants: Turns[str] = Turns()

    @property
    def is_open(self) -> bool:
        """Some tenant here may have a row."""
        return bool(self._tenants)

    def add(self, sequence: EngineSequence, *, first: bool) -> bool:
        """Adds a sequence; whether it is its request's only one. `grade` follows."""
        sequences = self.sequences.setdefault(sequence.origin, OrderedDict())
        sequences[sequence] = None
        if first:
            sequences.move_to_end(sequence, last=False)
        return len(sequences) == 1

    def remove(self, sequence: EngineSequence) -> bool:
        """Takes a sequence out; whether it was the only one of its request."""
        origin = sequence.origin
        sequences = self.sequences[origin]
        del sequences[sequence]
        if sequences:
            return False
        del self.sequences[origin]
        requests = self._requests[origin.tenant]
        requests.drop(origin)
        if not requests:
            del self._requests[origin.tenant]
            self._tenants.drop(origin.tenant)
        return True

    def next(self) -> EngineSequence:
        """Whose turn it is."""
        origin = self._requests[self._tenants.next()].next()
        return next(iter(self.sequences[origin]))

    def grade(
        self, origin: Origin, rows: tuple[int, int], *, first: bool = False
    ) -> None:
        """Gives a tenant and its request their places, where they wait here."""
        of_tenant, of_request = rows
        if origin in self.sequences:
            requests = self._requests.setdefault(origin.tenant, Turns())
            requests.put(origin, of_request, first=first)
        self.place(origin.tenant, of_tenant)

    def place(self, tenant: str, rows: int | None) -> None:
        """Gives a tenant its place, if it waits here; `None` passes it over."""
        if rows is None:
            self._tenants.drop(tenant)
        elif tenant in self._requests:
            self._tenants.put(tenant, rows)
