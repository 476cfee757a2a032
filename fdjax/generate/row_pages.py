"""`RowPages`: which pages rows have, while requests come and go."""

import jax.numpy as jnp

from fdjax.notation import Array, Int32
from fdjax.pytree import pytree, static


@pytree
class RowPages:
    """Which pages the rows of a call have, by what has changed in the table of all.

    The table stays on the device, `[R, W]`, from call to call.

    Attributes:
        changes: rows, places in them, and the pages that stand there from now on; of a
            row that there is not, nothing changes.
        counts: of each row of the call, how many of its pages count: what lies behind
            them is another request's, from before. 0 for rows that are not in the call.
        width: pages that a row of the call has at most; static.
    """

    changes: Int32[Array, "3 C"]
    counts: Int32[Array, " B"]
    width: int = static()

    @staticmethod
    def all_of(table: Int32[Array, "B W"]) -> "RowPages":
        """All that a table has, without a change; its ids `>= P` are absent."""
        num_rows, width = table.shape
        nothing = jnp.zeros((3, 0), jnp.int32)
        return RowPages(nothing, jnp.full(num_rows, width, jnp.int32), width)

    def page_table(
        self, table: Int32[Array, "R W"], *, absent: int
    ) -> Int32[Array, "B w"]:
        """The pages of the call's rows, the first of a table that has the changes.

        Args:
            table: of all rows.
            absent: what stands for no page.
        """
        part = table[: len(self.counts), : self.width]
        exists = jnp.arange(self.width) < self.counts[:, None]
        return jnp.where(exists, part, absent)


def place(
    table: Int32[Array, "R W"], changes: Int32[Array, "3 C"]
) -> Int32[Array, "R W"]:
    """A table with other pages in some places; see `RowPages.changes`. Donate it."""
    rows, places, pages = changes
    return table.at[rows, places].set(pages, mode="drop")
