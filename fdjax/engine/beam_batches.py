"""Which beam searches take their next step in one call. Host only."""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import jax

from fdjax.engine.beam_programs import Alike, Prepared
from fdjax.engine.sequence import EngineSequence


class LiveSearches:
    """How many searches there are of each kind, whose programs were prepared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_kind: dict[Alike, WeakValueDictionary[int, Prepared]] = {}

    def add(self, kind: Alike, prepared: Prepared) -> None:
        """Counts a search in; until nobody has its programs, it is there."""
        with self._lock:
            gone = [each for each, those in self._by_kind.items() if not those]
            for each in gone:
                del self._by_kind[each]
            those = self._by_kind.setdefault(kind, WeakValueDictionary())
            those[id(prepared)] = prepared

    def num_alike(self, prepared: Prepared) -> int:
        """How many there are of its kind, itself among them; 0 if it is not there."""
        with self._lock:
            kinds = (those for those in self._by_kind.values() if id(prepared) in those)
            return len(next(kinds, ()))


def kind_of(state: Any, prompt_width: int) -> Alike:
    """What searches of one kind have in common.

    Args:
        state: rules and run, or stand-ins.
        prompt_width: pages that the prompt's table has room for.
    """
    leaves, structure = jax.tree.flatten(state)
    return (prompt_width, structure, *((one.shape, one.dtype) for one in leaves))


def batches(
    searches: Sequence[EngineSequence],
    *,
    most: Callable[[Sequence[EngineSequence]], int],
) -> list[list[EngineSequence]]:
    """Searches in the batches that take a step together, of powers of two.

    Args:
        searches: whose next step is due.
        most: searches that a call may have, of some that are alike.
    """
    by_kind: dict[Alike, list[EngineSequence]] = {}
    found: list[list[EngineSequence]] = []
    for sequence in searches:
        kind = sequence.search.kind
        if kind is None:
            found.append([sequence])
        else:
            by_kind.setdefault(kind, []).append(sequence)
    for same in by_kind.values():
        first = 0
        while rest := same[first:]:
            count = largest_power(min(len(rest), max(most(rest), 1)))
            found.append(rest[:count])
            first += count
    return found


def largest_power(count: int) -> int:
    """The largest power of two that is at most `count`."""
    return 1 << (count.bit_length() - 1)
