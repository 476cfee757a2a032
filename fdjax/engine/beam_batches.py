"""Which beam searches take their next step in one call. Host only."""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import jax

from fdjax.engine.beam_programs import Alike, Prepared
from fdjax.engine.sequence import EngineSequence

ROWS_OF_A_CALL = 64
"""Reading the weights once more takes as long as so many more rows do, or longer."""


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
    """Searches in the batches that take a step together.

    Args:
        searches: whose next step is due.
        most: searches that the first call may have, of some that are alike: a power of
            two. If there are fewer, the call is padded.
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
            found.append(rest[: most(rest)])
            first += len(found[-1])
    return found


def first_call(count: int, *, rows: int) -> int:
    """Searches that the first call has of some that are alike: a power of two.

    It is padded, so that all are in it, where the padding costs less than the calls
    that it saves.

    Args:
        count: of the searches.
        rows: of each.
    """
    padded = padded_count(count)
    num_saved = count.bit_count() - 1
    if (padded - count) * rows <= num_saved * ROWS_OF_A_CALL:
        return padded
    return largest_power(count)


def padded_count(count: int) -> int:
    """Searches of a call with so many, padding included: the next power of two."""
    return 1 << (count - 1).bit_length()


def largest_power(count: int) -> int:
    """The largest power of two that is at most `count`."""
    return 1 << (count.bit_length() - 1)
