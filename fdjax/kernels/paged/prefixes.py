"""Leading pages that rows of a batch share, as kernels read them."""

from fdjax.notation import Array, Int32
from fdjax.pytree import pytree


@pytree
class SharedPrefixes:
    """Groups of a batch's rows whose leading pages are the same.

    `fdjax.kernels.shared_prefix` makes it, of one size whatever the groups are.

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
