"""`Prefixes`: pages that sequences which begin alike share. Host only."""

import itertools

from fdjax.engine.sequence import EngineSequence
from fdjax.memory.pages import PagePool


class Prefixes:
    """Finds pages of earlier sequences, and makes those of later ones findable.

    Args:
        pool: the pages.
        page_size: tokens of a page.
        caching: pages may be found and shared at all.

    Attributes:
        num_queried_tokens: tokens of sequences let in, whose beginnings were looked up.
        num_cached_tokens: tokens that were found.
    """

    def __init__(self, pool: PagePool, *, page_size: int, caching: bool) -> None:
        self.num_queried_tokens = self.num_cached_tokens = 0
        self._pool = pool
        self._page_size = page_size
        self._caching = caching
        # Keys of pages that running sequences will fill by prefill.
        self._coming: dict[bytes, EngineSequence] = {}

    @property
    def any_coming(self) -> bool:
        """Some page is being computed that another sequence may find."""
        return bool(self._coming)

    def found(self, sequence: EngineSequence) -> list[int] | None:
        """Pages with the sequence's first tokens; at least one token is left.

        Returns:
            `None` where the next page is being computed by another sequence: it is
            worth waiting for.
        """
        if not sequence.reads_cache:
            return []
        if sequence.group.is_coming:
            sequence.num_awaited = (sequence.num_prompt - 1) // self._page_size
            return None
        found = list(sequence.group.prompt)
        if not self._caching:
            return found
        sequence.keys.extend(sequence.tokens)
        if self._still_awaits(sequence):
            return None
        last = (len(sequence.tokens) - 1) // self._page_size
        keys = sequence.keys.keys[:last]
        for key in keys[len(found) :]:
            page = self._pool.find(key)
            if page is None:
                break
            found.append(page)
        coming = itertools.takewhile(self._coming.__contains__, keys[len(found) :])
        num_coming = sum(1 for _ in coming)
        sequence.num_awaited = len(found) + num_coming
        return None if num_coming else found

    def seated(self, sequence: EngineSequence, num_found: int) -> None:
        """Notes what a sequence that was let in has found, and will compute."""
        for key in sequence.keys.keys[num_found:]:
            self._coming.setdefault(key, sequence)
        if self._caching:
            self.num_queried_tokens += len(sequence.tokens)
            self.num_cached_tokens += sequence.num_prefilled
        sequence.group.seat()
        self._hold(sequence)

    def compute(self, sequence: EngineSequence) -> None:
        """Lets others begin from the pages that a chunk of the sequence has filled."""
        self._hold(sequence)
        self.remember(sequence)

    def remember(self, sequence: EngineSequence) -> None:
        """Makes findable the pages that the sequence has filled with known tokens.

        The last token read is not yet in the KV array.
        """
        # Asked for every token of every row: most of them fill no page.
        if (
            not self._caching
            or len(sequence.tokens) // self._page_size <= sequence.num_remembered
        ):
            return
        in_kv = min(sequence.num_prefilled, len(sequence.tokens))
        if sequence.num_launched:
            in_kv = max(in_kv, len(sequence.tokens) - 1)
        sequence.keys.extend(sequence.tokens)
        for place in range(sequence.num_remembered, in_kv // self._page_size):
            key = sequence.keys.keys[place]
            self._pool.remember(sequence.pages[place], key)
            self._arrived(key, sequence)
            sequence.num_remembered = place + 1

    def released(self, sequence: EngineSequence) -> None:
        """A sequence gives its pages back; what it has not computed, it will not."""
        for key in sequence.keys.keys:
            self._arrived(key, sequence)

    def _still_awaits(self, sequence: EngineSequence) -> bool:
        """The last page that it waited for is on its way: no need to ask for all."""
        if not sequence.num_awaited:
            return False
        key = sequence.keys.keys[sequence.num_awaited - 1]
        return key in self._coming and self._pool.find(key) is None

    def _hold(self, sequence: EngineSequence) -> None:
        """Lets its group hold what was computed of its prompt so far."""
        num_full = sequence.num_prefilled // self._page_size
        self._pool.fork(sequence.group.compute(sequence.pages[:num_full]))

    def _arrived(self, key: bytes, sequence: EngineSequence) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]
