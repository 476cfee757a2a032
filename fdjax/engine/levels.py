"""`Level`: sequences of one priority that wait for a row. Host only."""

from collections import OrderedDict
from collections.abc import Iterator

from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.turns import LeastFirst


class Level:
    """Two lines: of all that wait, and of those among them that are no beam searches.

    Searches can be passed over so, without a look at any of them.
    """

    def __init__(self) -> None:
        self._all, self._ordinary = _Line(), _Line()

    @property
    def is_empty(self) -> bool:
        """No sequence waits."""
        return not self._all.sequences

    def __iter__(self) -> Iterator[EngineSequence]:
        """All sequences, in no particular order."""
        for sequences in self._all.sequences.values():
            yield from sequences

    def is_open(self, *, searches: bool) -> bool:
        """Some tenant here may have a row; for a search too, or for none."""
        return self._line(searches).is_open

    def in_turn(self, *, searches: bool) -> Iterator[EngineSequence]:
        """Those that may have a row, the next one first; searches among them or not."""
        return self._line(searches).in_turn()

    def add(self, sequence: EngineSequence, *, first: bool) -> tuple[bool, bool]:
        """Adds a sequence.

        Returns:
            Whether it is its request's only one; and whether `grade` has to follow.
        """
        is_only = is_new = self._all.add(sequence, first=first)
        if not sequence.is_search:
            is_new |= self._ordinary.add(sequence, first=first)
        return is_only, is_new or first

    def remove(self, sequence: EngineSequence) -> bool:
        """Takes a sequence out; whether it was the only one of its request."""
        if not sequence.is_search:
            self._ordinary.remove(sequence)
        return self._all.remove(sequence)

    def grade(
        self, origin: Origin, rows: tuple[int, int], *, first: bool = False
    ) -> None:
        """Gives a tenant and its request their places, where they wait here."""
        for line in (self._all, self._ordinary):
            line.grade(origin, rows, first=first)

    def place(self, tenant: str, rows: int | None) -> None:
        """Gives a tenant its place, if it waits here; `None` passes it over."""
        for line in (self._all, self._ordinary):
            line.place(tenant, rows)

    def _line(self, searches: bool) -> "_Line":
        return self._all if searches else self._ordinary


class _Line:
    """Sequences by request, and the turns of requests and of tenants."""

    def __init__(self) -> None:
        self.sequences: dict[Origin, OrderedDict[EngineSequence, None]] = {}
        self._requests: dict[str, LeastFirst[Origin]] = {}
        self._tenants: LeastFirst[str] = LeastFirst()

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

    def in_turn(self) -> Iterator[EngineSequence]:
        """Those that may have a row, the next one first."""
        for tenant in self._tenants:
            for origin in self._requests[tenant]:
                yield from self.sequences[origin]

    def grade(
        self, origin: Origin, rows: tuple[int, int], *, first: bool = False
    ) -> None:
        """Gives a tenant and its request their places, where they wait here."""
        of_tenant, of_request = rows
        if origin in self.sequences:
            requests = self._requests.setdefault(origin.tenant, LeastFirst())
            requests.put(origin, of_request, first=first)
        self.place(origin.tenant, of_tenant)

    def place(self, tenant: str, rows: int | None) -> None:
        """Gives a tenant its place, if it waits here; `None` passes it over."""
        if rows is None:
            self._tenants.drop(tenant)
        elif tenant in self._requests:
            self._tenants.put(tenant, rows)
