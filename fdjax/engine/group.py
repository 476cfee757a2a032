"""`Group`: the branches that continue one prompt, between a request and its rows."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Group(Protocol):
    """Samples, which are sequences of one prompt, or the beams of one sequence.

    The prompt's pages are held once for all branches, and what each of them writes
    lies in pages of its own. A group begins when its first sequence is let in, and
    holds nothing any more when none of its sequences has a row.
    """

    @property
    def prompt(self) -> Sequence[int]:
        """Full pages of the prompt from which another sequence of it may begin."""
        ...

    @property
    def is_coming(self) -> bool:
        """A sequence of it computes the prompt, from which others will begin."""
        ...

    def seat(self) -> None:
        """A sequence of it has a row."""
        ...

    def compute(self, pages: Sequence[int]) -> list[int]:
        """A sequence of it has computed the prompt so far.

        Args:
            pages: the prompt's first ones, full.

        Returns:
            Those that the group is to hold from now on too.
        """
        ...

    def leave(self) -> list[int]:
        """A sequence of it has lost its row: pages that the group holds no more."""
        ...

    def move(self, moves: Mapping[int, int]) -> None:
        """Names pages by where their contents are now.

        Several sequences may tell the same.

        Args:
            moves: from which page to which they went; no page is both.
        """
        ...

    def restart(self) -> None:
        """A sequence of it goes back to the queue."""
        ...


class Samples:
    """Samples of one prompt: whichever is let in first computes it for all.

    The others begin from its pages, whether prefixes are cached or not, but for the
    page with the prompt's last token: each has the logits of that one to itself, and
    goes on in the same page. Samples are let in, put back and ended one by one, as none
    needs the others.

    Args:
        num_prompt: tokens of the prompt.
        page_size: tokens of a page.
        count: samples.

    Attributes:
        prompt: see `Group`, as for the others.
    """

    def __init__(
        self, num_prompt: int = 0, *, page_size: int = 1, count: int = 1
    ) -> None:
        self.prompt: list[int] = []
        # One alone shares nothing with itself.
        self._num_pages = (num_prompt - 1) // page_size if count > 1 else 0
        self._num_seated = 0

    @property
    def is_coming(self) -> bool:
        """As above."""
        return self._num_seated > 0 and len(self.prompt) < self._num_pages

    def seat(self) -> None:
        """As above."""
        self._num_seated += 1

    def compute(self, pages: Sequence[int]) -> list[int]:
        """As above."""
        more = list(pages[len(self.prompt) : self._num_pages])
        self.prompt += more
        return more

    def leave(self) -> list[int]:
        """As above."""
        self._num_seated -= 1
        if self._num_seated:
            return []
        pages, self.prompt = self.prompt, []
        return pages

    def move(self, moves: Mapping[int, int]) -> None:
        """As above."""
        self.prompt = [moves.get(page, page) for page in self.prompt]

    def restart(self) -> None:
        """As above: the group goes on with what others of it hold."""
