"""`Room`: pages at the end of the KV array that the next call borrows. Host only."""

from collections.abc import Collection, Iterable, Sequence

from fdjax.engine.borrowing import NOTHING_BORROWED, Borrowing
from fdjax.engine.buckets import SCORED_TOKENS, Buckets, smallest_fitting
from fdjax.engine.request import Request
from fdjax.engine.search import Search
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.memory.pages import PagePool


def largest_borrowed(borrowing: Borrowing, buckets: Buckets) -> int:
    """Pages that the largest usual call borrows: what a pool should hand out last."""
    return max(
        borrowing.pages("extend", buckets.prefills[-1]),
        borrowing.pages("decode", buckets.rows[-1]),
    )


class Room:
    """How much room the next call needs, how much there is, and how it is made.

    Pages that somebody holds where the call computes are moved down, whenever the other
    pages have room for all that is held: a move reads and writes a page once (some
    microseconds, in order with other launches, so that nobody waits), and a call of
    fewer tokens reads all weights once more. Only where too much is held for that, a
    call takes fewer tokens of prompts; and where even the smallest one has no room, the
    sequence that is last in order is put back. One that runs alone always has the room,
    or it was refused: `least`.

    Args:
        pool: the pages.
        buckets: shapes of calls.
        borrowing: of each of them.
        page_size: tokens of a page.

    Attributes:
        borrows: calls borrow pages at all.
        num_moved: pages moved so far.
        num_put_back: sequences put back so far, for whose own pages there was room.
        num_promised: pages that nobody holds yet, and prompts let in will take.
        num_borrowed: pages that the largest call of the last step launched borrows.
    """

    def __init__(
        self,
        pool: PagePool,
        buckets: Buckets,
        borrowing: Borrowing = NOTHING_BORROWED,
        *,
        page_size: int,
    ) -> None:
        self.borrows = borrowing is not NOTHING_BORROWED
        self.num_moved = self.num_put_back = self.num_promised = 0
        self.num_borrowed = self._of_step = 0
        self._pool = pool
        self._buckets = buckets
        self._pages = borrowing.pages
        self._page_size = page_size

    def least(self, request: Request, *, num_rows: int = 1) -> int:
        """Pages that the smallest steps borrow in which a request goes on.

        Args:
            request: with whatever is asked of its prompt.
            num_rows: that run then, itself among them.
        """
        sizes = self._buckets.prefills
        pages = [
            self._pages("extend", smallest_fitting(sizes, min(num_rows, sizes[-1]))),
            self.of_rows(min(num_rows, self._buckets.rows[-1])),
        ]
        if request.pooling is not None:
            pages.append(self._pages("pool", self._buckets.pooled[0]))
        if request.params.prompt_logprobs is not None:
            pages.append(self._pages("score", SCORED_TOKENS))
        if request.beams is not None:
            pages.append(self.of_search(request.beams))
        return max(pages)

    def of_searches(self, groups: Iterable[Search], *, count: int = 1) -> int:
        """Pages that the largest step borrows, if each is of so many searches.

        Args:
            groups: a search of each step.
            count: of a step.
        """
        if not self.borrows:
            return 0
        pages = (self.of_search(group.params, count=count) for group in groups)
        return max(pages, default=0)

    def of_search(self, params: BeamSearchParams, *, count: int = 1) -> int:
        """Pages that a step of searches borrows, of so many that are alike."""
        rows = self._buckets.beam_rows(params.num_beam_groups, params.group_width)
        return self._pages("beams", count * rows)

    def of_rows(self, num_rows: int) -> int:
        """Pages that decode steps of the first rows borrow."""
        if not num_rows:
            return 0
        return self._pages("decode", smallest_fitting(self._buckets.rows, num_rows))

    def of_call(self, num_decoding: int, chunks: Sequence[PromptChunk]) -> int:
        """Pages that the programs borrow of a call with prompts.

        Args:
            num_decoding: rows that decode in it.
            chunks: of the prompts.
        """
        pooled = [chunk for chunk in chunks if chunk.sequence.pooled is not None]
        others = [chunk for chunk in chunks if chunk.sequence.pooled is None]
        pages = [0]
        if pooled:
            count = sum(chunk.size for chunk in pooled)
            size = smallest_fitting(self._buckets.pooled, count)
            pages.append(self._pages("pool", size))
        if _any_scored(chunk.sequence for chunk in others):
            pages.append(self._pages("score", SCORED_TOKENS))
        if num_decoding or others:
            count = num_decoding + sum(chunk.size for chunk in others)
            size, _ = self._buckets.call_shape(count, len(others))
            pages.append(self._pages("extend", size))
        return max(pages)

    def least_of_prompts(
        self, prompts: Collection[EngineSequence], num_decoding: int = 0
    ) -> int:
        """Pages that the smallest call borrows with any of these prompts.

        Args:
            prompts: that wait.
            num_decoding: rows that decode: in it, if they do not take turns.
        """
        if not self.borrows:
            return 0
        beside = num_decoding if self._buckets.mixes(num_decoding) else 0
        size = smallest_fitting(self._buckets.prefills, beside + 1)
        return self._of_prompts(prompts, size)

    def most_tokens(self, prompts: Collection[EngineSequence]) -> int:
        """Tokens of the largest call with any of these prompts that there is room for.

        The caller has made room for the smallest.
        """
        sizes = self._buckets.prefills
        if not self.borrows:
            return sizes[-1]
        fitting = (
            size
            for size in reversed(sizes)
            if self._pool.can_clear(
                self._of_prompts(prompts, size) + self._taken(prompts, size)
            )
        )
        return next(fitting, sizes[0])

    def promise(self, sequence: EngineSequence, count: int) -> None:
        """So many pages will be for the prompt of a sequence, in place of those before.

        Until a chunk needs them they are room for steps, so that the first chunks of a
        long prompt are large ones.
        """
        self.num_promised += count - sequence.num_promised
        sequence.num_promised = count

    def take(self, chunk: PromptChunk) -> None:
        """Gives a sequence the pages of a chunk that were promised."""
        sequence, needed = chunk.sequence, -(-chunk.stop // self._page_size)
        count = max(needed - len(sequence.pages), 0)
        sequence.pages += self._pool.take(count)
        self.promise(sequence, sequence.num_promised - count)

    def can_gather(self, sequences: Sequence[EngineSequence]) -> bool:
        """Whether pages of a batch of these can all be copied."""
        rows = smallest_fitting(self._buckets.rows, len(sequences))
        tokens = max(sequence.request.num_kv_tokens for sequence in sequences)
        width = self._buckets.width(-(-tokens // self._page_size))
        return rows == 1 or rows * width <= self._pool.num_pages

    def can_clear(self, count: int) -> bool:
        """Whether so many pages have room beside all that is held and promised."""
        return self._pool.can_clear(count + self.num_promised)

    def clear(self, count: int, running: Sequence[EngineSequence]) -> dict[int, int]:
        """Frees the last pages, and tells holders where theirs are now.

        Args:
            count: how many.
            running: all who hold pages.

        Returns:
            See `PagePool.clear_top`.
        """
        self._of_step = max(self._of_step, count)
        moves = self._pool.clear_top(count) if count else {}
        if moves:
            self.num_moved += len(moves)
            for sequence in running:
                sequence.move(moves)
        return moves

    def end_step(self) -> None:
        """All calls of a step are launched: `num_borrowed` is of this one now."""
        self.num_borrowed, self._of_step = self._of_step, 0

    def _taken(self, prompts: Collection[EngineSequence], num_tokens: int) -> int:
        """Pages that prompts take for so many tokens at most: each may begin one."""
        return min(num_tokens // self._page_size + len(prompts), self.num_promised)

    def _of_prompts(self, prompts: Collection[EngineSequence], size: int) -> int:
        pages = self._pages("extend", size)
        if any(sequence.pooled is not None for sequence in prompts):
            pooled = smallest_fitting(self._buckets.pooled, size)
            pages = max(pages, self._pages("pool", pooled))
        if _any_scored(prompts):
            pages = max(pages, self._pages("score", SCORED_TOKENS))
        return pages


def _any_scored(sequences: Iterable[EngineSequence]) -> bool:
    return any(
        sequence.scored is not None and sequence.scored.num_missing > 0
        for sequence in sequences
    )
