"""Which pages and which new tokens the rows of a call have."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdjax.kernels.paged.integers import (
    HIGHEST,
    check_shape,
    int32_of,
    whole_number,
)
from fdjax.kernels.paged.prefixes import SharedPrefixes
from fdjax.notation import Array, Int32
from fdjax.pytree import pytree, static

NO_PAGE = 2**31 - 1
"""The id of a page that is absent, whatever the number of pages."""


class Queries(NamedTuple):
    """The queries of a call.

    Attributes:
        row: that each belongs to; where there is none, some row.
        position: in its row's sequence; -1: it belongs to none, and sees nothing.
    """

    row: Int32[Array, " T"]
    position: Int32[Array, " T"]


@pytree
class PageView:
    """The rows of a call: their pages, their tokens, and which of these are new.

    Row `r` has `lengths[r] - starts[r]` new tokens, or none if that is negative. They
    are neighbours among the `T` tokens of a call; tokens of no row are padding. Whole
    numbers of any type are taken, and are int32 afterwards.

    Attributes:
        page_table: pages of each row in order; ids below 0 or `>= P` are absent. Where
            it has no columns, no row has a page.
        lengths: tokens of each row in the cache, the new ones among them; those that
            its table has no room for are no one's.
        starts: position of each row's first new token; `None`: 0, all are new.
        firsts: where among the call's tokens those of each row begin, in ascending
            order; `None`: every row has room for `T / B` of them.
        prefixes: what rows that decode share, for an implementation that reads it once
            for all of them; others read it for each. Made for this table and these
            lengths. `None`: nothing.
        by_slot: the table has a slot for each token, `page * Z + place`, in place of
            pages; absent ones are negative or past the end. For rows that decode.
        decodes: every row is known to have one new token, its last (`decoding`):
            `starts` are a device's numbers, and tell nobody who chooses a kernel.

    Raises:
        ValueError: the arrays are not of one number of rows, or not whole numbers.
        TypeError: one of them is no array, or `prefixes` something else.
    """

    page_table: Int32[Array, "B W"]
    lengths: Int32[Array, " B"]
    starts: Int32[Array, " B"] | None = None
    firsts: Int32[Array, " B"] | None = None
    prefixes: SharedPrefixes | None = None
    by_slot: bool = static(default=False)
    decodes: bool = static(default=False)

    def __post_init__(self) -> None:
        for name in ("page_table", "lengths", "starts", "firsts"):
            if (array := getattr(self, name)) is not None:
                object.__setattr__(self, name, int32_of("PageView", name, array))
        check_shape("PageView", "page_table", self.page_table, "B", "W")
        by_row = {"lengths": self.lengths, "starts": self.starts, "firsts": self.firsts}
        for name, array in by_row.items():
            if array is not None and array.shape != (self.num_rows,):
                raise ValueError(
                    f"PageView: page_table has {self.num_rows} rows, {name} "
                    f"{array.shape}; give {name} one number a row, [{self.num_rows}]"
                )
        if self.prefixes is not None:
            given: Any = self.prefixes
            if not isinstance(given, SharedPrefixes):
                raise TypeError(
                    f"PageView: prefixes is of type {type(given).__name__}; give what "
                    "`plan_prefixes` makes, or None"
                )
            checked = given.checked("PageView", self.num_rows)
            object.__setattr__(self, "prefixes", checked)

    @staticmethod
    def decoding(
        page_table: Int32[Array, "B W"],
        lengths: Int32[Array, " B"],
        prefixes: SharedPrefixes | None = None,
    ) -> "PageView":
        """One new token a row: its last."""
        lengths = int32_of("PageView", "lengths", lengths)
        return PageView(
            page_table, lengths, lengths - 1, prefixes=prefixes, decodes=True
        )

    @staticmethod
    def table_of(
        indices: Int32[Array, " N"], offsets: Int32[Array, " C"], *, width: int
    ) -> Int32[Array, "B W"]:
        """A page table from ids that follow one another (FlashInfer, section 3.1.1).

        Args:
            indices: pages of row 0, then those of row 1, and so on.
            offsets: where those of each row begin, and where the last ones end: one
                more than there are rows. A row whose offsets fall, or leave `indices`,
                has no pages there.
            width: pages that a row may have; those beyond it are left out.

        Raises:
            ValueError: an array has another number of axes, or no whole numbers; there
                is no offset; or `width` is negative, or the table would have more
                places than 32 bits count.
            TypeError: an array is none, or `width` is no whole number, or traced.
        """
        indices = int32_of("PageView", "indices", indices)
        offsets = int32_of("PageView", "offsets", offsets)
        check_shape("PageView", "indices", indices, "N")
        check_shape("PageView", "offsets", offsets, "B + 1")
        if not offsets.shape[0]:
            raise ValueError("PageView: offsets is (0,); give one more than rows")
        width = whole_number("PageView", "width", width, least=0)
        num_rows, num_ids = offsets.shape[0] - 1, indices.shape[0]
        check_width("PageView", "width", width, num_rows=num_rows, num_ids=num_ids)
        begins, ends = offsets[:-1, None], offsets[1:, None]
        # What is past the end stays there: longer sums would be negative.
        first = jnp.minimum(begins, len(indices))
        places = first + jnp.arange(width, dtype=jnp.int32)
        exists = (places < ends) & (begins >= 0)
        beyond = jnp.append(indices, jnp.int32(NO_PAGE))
        ids = beyond.at[jnp.clip(places, 0)].get(mode="clip")
        return jnp.where(exists & (ids >= 0), ids, NO_PAGE)

    @staticmethod
    def packed(
        page_table: Int32[Array, "B W"],
        lengths: Int32[Array, " B"],
        starts: Int32[Array, " B"],
    ) -> "PageView":
        """New tokens of row 0, then those of row 1, and so on; the rest is padding."""
        lengths = int32_of("PageView", "lengths", lengths)
        starts = int32_of("PageView", "starts", starts)
        counts = jnp.where(lengths > starts, lengths - starts, 0)
        # Without a dtype its sums are int64 where JAX has 64 bits.
        firsts = jnp.cumsum(counts, dtype=jnp.int32) - counts
        return PageView(page_table, lengths, starts, firsts)

    @property
    def num_rows(self) -> int:
        """`B`."""
        return self.page_table.shape[0]

    @property
    def width(self) -> int:
        """`W`, the pages that a row may have."""
        return self.page_table.shape[1]

    @property
    def first_positions(self) -> Int32[Array, " B"]:
        """`starts`, whatever form they have."""
        return jnp.zeros_like(self.lengths) if self.starts is None else self.starts

    def room(self, num_tokens: int) -> int:
        """Tokens that every row has room for, where `firsts` is `None`."""
        return num_tokens // max(self.num_rows, 1)

    def first_tokens(self, num_tokens: int) -> Int32[Array, " B"]:
        """`firsts`, whatever form they have."""
        if self.firsts is not None:
            return self.firsts
        return jnp.arange(self.num_rows, dtype=jnp.int32) * self.room(num_tokens)

    def last_tokens(self, num_tokens: int) -> Int32[Array, " B"]:
        """Where the last new token of each row is; a row without any: some other's."""
        counts = self.lengths - self.first_positions
        return jnp.maximum(self.first_tokens(num_tokens) + counts - 1, 0)

    def rows(self, num_tokens: int) -> Int32[Array, " T"]:
        """The row that each token belongs to, if to any: the last that has begun."""
        place = jnp.arange(num_tokens, dtype=jnp.int32)
        if self.firsts is None:
            return place // max(self.room(num_tokens), 1)
        begun = self.firsts <= place[:, None]
        return jnp.maximum(jnp.sum(begun, axis=1, dtype=jnp.int32) - 1, 0)

    def positions(self, num_tokens: int) -> Int32[Array, " T"]:
        """The position of each token in its row; padding goes on from its row's end."""
        starts = self.first_positions
        if self.firsts is None:
            steps = jnp.arange(self.room(num_tokens), dtype=jnp.int32)
            return (starts[:, None] + steps).reshape(-1)
        place = jnp.arange(num_tokens, dtype=jnp.int32)
        return place + (starts - self.firsts)[self.rows(num_tokens)]

    def queries(self, num_tokens: int, *, max_tokens: int) -> "Queries":
        """What attention serves among so many tokens, whatever numbers the rows have.

        A row has no more tokens than its table has room for. A token is that of the
        row that begins nearest before it, of those with new tokens that begin among
        the call's; of two that begin at one place, the later. Where `firsts` is as it
        should be, these are the tokens of `rows` and `positions` that are no padding.

        Args:
            num_tokens: `T`.
            max_tokens: that a row's table has room for.
        """
        firsts = self.first_tokens(num_tokens)
        room = self.room(num_tokens) if self.firsts is None else None
        return _queries(
            jnp.minimum(self.lengths, max_tokens),
            self.first_positions,
            firsts,
            num_tokens=num_tokens,
            room=room,
        )

    def slots(self, num_tokens: int, *, page_size: int) -> Int32[Array, " T"]:
        """Where each token's key and value go, `page * Z + slot`.

        -1 for padding, which what lies before the first row is, too; for tokens past
        their row's table; and for ids that no cache has room for, so that nothing is
        written. Past the end of the cache for other absent pages, likewise.
        """
        if not self.width:
            return jnp.full(num_tokens, -1, jnp.int32)
        rows, positions = self.rows(num_tokens), self.positions(num_tokens)
        index = positions // page_size
        pages = self.page_table.at[rows, index].get(mode="clip")
        exists = (positions >= 0) & (positions < self.lengths[rows])
        if self.firsts is not None:
            exists &= positions >= self.first_positions[rows]
        # What is counted beyond 32 bits would be some other page's slot.
        counted = (pages >= 0) & (pages <= (HIGHEST + 1) // page_size - 1)
        inside = exists & (index < self.width) & counted
        return jnp.where(inside, pages * page_size + positions % page_size, -1)


def check_width(
    owner: str, name: str, width: int, *, num_rows: int, num_ids: int
) -> None:
    """Raises `ValueError` where a table has more places than 32 bits count.

    Args:
        owner: whose argument the width is.
        name: of the argument.
        width: pages that a row may have.
        num_rows: of the table.
        num_ids: that the table is made of.
    """
    if max(num_rows, 1) * width > HIGHEST:
        raise ValueError(
            f"{owner}: {name} is {width}, and a table of {num_rows} rows has {HIGHEST} "
            "places at most; give the pages of the longest row, at most the "
            f"{num_ids} ids that there are"
        )


# A function of its own: traced once for all layers of a model.
@functools.partial(jax.jit, static_argnames=("num_tokens", "room"))
def _queries(
    lengths: Int32[Array, " B"],
    starts: Int32[Array, " B"],
    firsts: Int32[Array, " B"],
    *,
    num_tokens: int,
    room: int | None,
) -> Queries:
    """See `PageView.queries`; `room` is that of every row, where that is known."""
    place = jnp.arange(num_tokens, dtype=jnp.int32)
    if room is not None:
        row = jnp.minimum(place // max(room, 1), len(lengths) - 1)
        begun = jnp.ones(num_tokens, bool)
    else:
        begins = (lengths > starts) & (firsts >= 0) & (firsts <= place[:, None])
        nearest = jnp.max(jnp.where(begins, firsts, -1), axis=1, initial=-1)
        index = jnp.arange(len(lengths), dtype=jnp.int32)
        own = begins & (firsts == nearest[:, None])
        row = jnp.max(jnp.where(own, index, 0), axis=1, initial=0)
        begun = nearest >= 0
    position = starts[row] + place - firsts[row]
    exists = begun & (position >= 0) & (position < lengths[row])
    return Queries(row, jnp.where(exists, position, -1))
