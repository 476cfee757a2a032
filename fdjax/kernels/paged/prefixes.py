"""Leading pages that rows of a batch share, as kernels read them."""

from typing import Any

import jax.numpy as jnp

from fdjax.notation import Array, Int32
from fdjax.pytree import pytree


@pytree
class SharedPrefixes:
    """Groups of a batch's rows whose leading pages are the same.

    `fdjax.kernels.shared_prefix` makes it, of one size whatever the groups are, for a
    page table and its lengths; kernels follow its numbers without looking at them.

    Attributes:
        tokens: of each row, those that belong to prefixes; whole pages.
        order: rows in an order in which those of a group follow one another.
        work: pieces of prefixes for up to 128 queries, as
            `fdjax.kernels.prefill_plan.tiles.work_of` has them; `first` counts
            places of the order.
        parts: for each level and place of the order, where what the row's query has
            found is left: record, number of pieces, and which token of the tile.
    """

    tokens: Int32[Array, " B"]
    order: Int32[Array, " B"]
    work: Int32[Array, "M 8"]
    parts: Int32[Array, "K B 4"]

    @property
    def num_records(self) -> int:
        """Pieces that there is room for."""
        return self.work.shape[0]

    def check(self, owner: str, num_rows: int) -> None:
        """Raises `ValueError` where arrays are not of a batch of so many rows."""
        shapes: dict[str, tuple[Any, ...]] = {
            "tokens": (num_rows,),
            "order": (num_rows,),
            "work": (self.num_records, 8),
            "parts": (self.parts.shape[0], num_rows, 4),
        }
        for name, shape in shapes.items():
            if (found := getattr(self, name).shape) != shape:
                raise ValueError(
                    f"{owner}: prefixes.{name} is {found}, and {num_rows} rows have "
                    f"{shape}; make prefixes for these rows"
                )

    def within(self, max_tokens: int, most_queries: int) -> "SharedPrefixes":
        """The same without what points out of the batch, whoever has made it.

        Args:
            max_tokens: that a row's table has room for.
            most_queries: of a piece.
        """
        rows, records = len(self.order), self.num_records
        row, first, end, queries, begin, stop, record, pieces = self.work.T
        whole = (row >= 0) & (row < rows) & (first >= 0) & (queries >= 0)
        whole &= (queries <= most_queries) & (first <= rows - queries)
        whole &= (begin >= 0) & (begin <= stop) & (stop <= end) & (end <= max_tokens)
        whole &= (record >= 0) & (pieces >= 0) & (record <= records - 1)
        record, count, query, _ = jnp.moveaxis(self.parts, -1, 0)
        joined = (record >= 0) & (count >= 0) & (count <= records - record)
        joined &= (query >= 0) & (query < most_queries)
        return SharedPrefixes(
            jnp.clip(self.tokens, 0, max_tokens),
            jnp.clip(self.order, 0, rows - 1),
            jnp.where(whole[:, None], self.work, 0),
            jnp.where(joined[..., None], self.parts, -1),
        )
