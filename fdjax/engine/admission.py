"""`Admission`: who may have a row next, and who waits for one. Host only."""

from collections.abc import Iterator, Sequence

from fdjax.engine.beam_searches import BeamSearches
from fdjax.engine.room import Room
from fdjax.engine.rows import FreeRows
from fdjax.engine.sequence import EngineSequence
from fdjax.engine.waiting import WaitingSequences
from fdjax.memory.pages import PagePool

# Sequences that overtake one search, for each row that there is.
_TIMES_ROWS = 4


class Admission:
    """Goes through the queue, in its order, but for those that wait for something else.

    A sequence may wait for pages that another one computes. It is passed over, and the
    rows and pages that it will need are kept for it: those behind it have what is left,
    and it loses nothing by that.

    A search needs all of its rows at once. Where searches together would hold more
    than they may, it waits until another has ended, and keeps nobody out but searches.
    Where others hold too many rows for it, whoever holds no more than its tenant
    overtakes it, up to four times as many sequences as there are rows, and then rows
    are kept for it: if all waited for it, it would hold them up as long as those that
    run take, and if none did, it would starve.

    Args:
        waiting: who waits.
        rows: that are free.
        beams: searches that run.
        room: that calls need.
        pool: the pages.
        num_rows: that there are.
        page_size: tokens of a page.
        gathering: decode calls copy their pages, and there is room for all once.

    Attributes:
        kept_out: the first that got no row or no pages, if others could give way to it.
        num_kept_pages: for those that were passed over.
    """

    def __init__(
        self,
        waiting: WaitingSequences,
        rows: FreeRows,
        beams: BeamSearches,
        room: Room,
        pool: PagePool,
        *,
        num_rows: int,
        page_size: int,
        gathering: bool,
    ) -> None:
        self.kept_out: EngineSequence | None = None
        self._waiting, self._rows, self._beams = waiting, rows, beams
        self._room, self._pool = room, pool
        self._page_size, self._gathering = page_size, gathering
        self._most_overtaking = _TIMES_ROWS * num_rows
        self._search: EngineSequence | None = None
        self._num_overtaking = 0
        self._go_back()

    def begin(self) -> None:
        """Goes through the queue anew."""
        self.kept_out, self._waiting.passes_searches = None, False
        self._go_back()

    def next(self) -> EngineSequence | None:
        """The next sequence, for which there are rows; `None` if no other may go in."""
        for sequence in self._queue:
            has_rows = sequence.request.num_rows <= len(self._rows)
            if sequence.is_search and not self._has_turn(sequence, has_rows):
                self._waiting.passes_searches = True
                self._go_back()
                return self.next()
            search = self.kept_out
            if search is not None and not self._may_overtake(sequence, search):
                return None
            if not has_rows:
                self.keep_out(sequence)
            num_free = len(self._rows) - self._num_kept_rows
            return sequence if sequence.request.num_rows <= num_free else None
        return None

    def pass_over(self, sequence: EngineSequence, num_pages: int) -> None:
        """That sequence, the next one, waits for pages that another one computes.

        Args:
            sequence: its rows are kept for it.
            num_pages: that its prompt will need besides. They are kept, too, and a page
                more for each row, as for those that run.
        """
        self._num_kept_rows += sequence.request.num_rows
        self.num_kept_pages += num_pages + sequence.request.num_rows

    def keep_out(self, sequence: EngineSequence) -> None:
        """That sequence, the next one, gets no rows or no pages."""
        if not self._num_kept_rows:  # else it may be for these, who do not wait long
            self.kept_out = self.kept_out or sequence

    def seat(
        self,
        sequence: EngineSequence,
        found: Sequence[int],
        running: Sequence[EngineSequence],
        *,
        borrowed: int,
    ) -> bool:
        """Gives that sequence, the next one, a row if there are pages for it.

        Args:
            sequence: it is in the queue no more then, and its pages are promised.
            found: pages that hold its first tokens, which it shares.
            running: those that have rows.
            borrowed: pages that a step needs, of it or of prompts that run.

        Returns:
            Whether there are.
        """
        if self._gathering and not self._room.can_gather([*running, sequence]):
            return False
        self._pool.share(found)
        missing = -(-len(sequence.tokens) // self._page_size) - len(found)
        num_free = self._pool.num_free - self._room.num_promised
        if running and missing + self._crowd(sequence, borrowed) > num_free:
            self._pool.give_back(found)
            return False
        sequence.seat(self._rows.take(sequence), found, page_size=self._page_size)
        self._room.promise(sequence, missing)
        self._waiting.take(sequence)
        self._waiting.seated(sequence)
        self._let_in()
        return True

    def _crowd(self, sequence: EngineSequence, borrowed: int) -> int:
        """Pages that must be free beside a sequence's own when it is let in.

        One more of each row that is held already, the first ones of beams, and what a
        step borrows, of it, of a search or of prompts that run (`borrowed`): or it
        would be put back as soon as it is let in.
        """
        crowd = self._rows.num_held + sequence.request.num_rows * sequence.is_search
        crowd += max(borrowed, self._beams.borrowed(self._room))
        return crowd + self.num_kept_pages

    def _let_in(self) -> None:
        if self.kept_out is not None:
            self._num_overtaking += 1
        self._go_back()

    def _go_back(self) -> None:
        """To the begin of the queue."""
        self._queue: Iterator[EngineSequence] = self._waiting.in_turn()
        self._num_kept_rows = self.num_kept_pages = 0

    def _has_turn(self, search: EngineSequence, has_rows: bool) -> bool:
        """Whether a search, the first in the queue, can have its rows."""
        if self._beams.is_too_many(search):
            return False
        if not has_rows:
            self.kept_out = search
            if search is not self._search:
                self._search, self._num_overtaking = search, 0
        return has_rows

    def _may_overtake(self, sequence: EngineSequence, search: EngineSequence) -> bool:
        return (
            self._num_overtaking < self._most_overtaking
            and self._waiting.is_as_light(sequence, search)
        )
