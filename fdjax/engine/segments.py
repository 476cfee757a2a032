"""`Segments`: the pages of beams for what comes after their prompt."""

from collections.abc import Mapping, Sequence

import numpy as np


class Segments:
    """Which pages each beam has written, and which of them some beam still reads.

    A beam writes into pages of its own, and its keys stay there when beams are
    reordered: for each token that was fed, an index says in which beam's page it lies.
    It is the one of the device (`BeamView.origins`), followed here as steps are read,
    so that pages that no beam points at any more can be given back.

    Args:
        width: beams.
        page_size: tokens of a page.

    Attributes:
        pages: of each beam, in order; `None` stands for one that was given back.
        num_changes: how often they have become others.
    """

    def __init__(self, width: int, page_size: int) -> None:
        self.pages: list[list[int | None]] = [[] for _ in range(width)]
        self.num_changes = 0
        self._page_size = page_size
        # By token, then beam: a step adds a row, and a reordering selects columns.
        self._origins = np.zeros((0, width), np.int32)

    @property
    def held(self) -> list[int]:
        """All pages that were not given back."""
        return [page for pages in self.pages for page in pages if page is not None]

    @property
    def num_pages(self) -> int:
        """Of each beam, those given back among them."""
        return len(self.pages[0])

    def missing(self, num_tokens: int) -> int:
        """Pages that beams lack to have room for `num_tokens` each."""
        needed = -(-num_tokens // self._page_size)
        return len(self.pages) * max(needed - len(self.pages[0]), 0)

    def grow(self, pages: Sequence[int]) -> None:
        """Gives each beam as many of some more pages."""
        self.num_changes += bool(pages)
        for place, page in enumerate(pages):
            self.pages[place % len(self.pages)].append(page)

    def move(self, moves: Mapping[int, int]) -> None:
        """Names pages by where their contents are now.

        Args:
            moves: from which page to which they went.
        """
        self.num_changes += 1
        self.pages = [
            [None if page is None else moves.get(page, page) for page in pages]
            for pages in self.pages
        ]

    def table(self, absent: int) -> list[list[int]]:
        """Page ids by beam, with `absent` for those that were given back."""
        return [[absent if p is None else p for p in pages] for pages in self.pages]

    def feed(self) -> None:
        """Each beam's last token was written, to its own page."""
        own = np.arange(len(self.pages), dtype=np.int32)
        self._origins = np.concatenate([self._origins, own[None]])

    def select(self, parents: Sequence[int]) -> list[int]:
        """Goes on with the beams chosen, some of them several times.

        Args:
            parents: which beam each one was before.

        Returns:
            Pages that no beam reads any more, now without an owner. Nothing that is
            launched writes them: of the last page of a beam that may not be said.
        """
        self._origins = self._origins[:, list(parents)]
        num_full = len(self._origins) // self._page_size
        if not num_full:
            return []
        fed = self._origins[: num_full * self._page_size]
        read = np.zeros((num_full, len(self.pages)), np.bool_)
        blocks = np.arange(len(fed)) // self._page_size
        read[blocks[:, None], fed] = True
        dead: list[int] = []
        for block, beam in np.argwhere(~read).tolist():
            page = self.pages[beam][block]
            if page is not None:
                dead.append(page)
                self.pages[beam][block] = None
        self.num_changes += bool(dead)
        return dead
