"""Leading pages that rows of a batch share, as kernels read them."""

import functools

import jax
import jax.numpy as jnp

from fdjax.kernels.paged.integers import HIGHEST, check_shape, int32_of
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

    def checked(self, owner: str, num_rows: int) -> "SharedPrefixes":
        """The same in int32, of a batch of so many rows.

        Raises:
            ValueError: an array is of another shape, or its numbers are not whole.
            TypeError: one is no array.
        """
        axes = {
            "tokens": {"B": num_rows},
            "order": {"B": num_rows},
            "work": {"M": None, "8": 8},
            "parts": {"K": None, "B": num_rows, "4": 4},
        }
        arrays: dict[str, Array] = {}
        for name, sizes in axes.items():
            array = int32_of(owner, f"prefixes.{name}", getattr(self, name))
            check_shape(owner, f"prefixes.{name}", array, *sizes)
            wanted = zip(sizes.values(), array.shape, strict=True)
            if any(size not in (None, found) for size, found in wanted):
                raise ValueError(
                    f"{owner}: prefixes.{name} is {array.shape}, and {num_rows} "
                    f"rows have [{', '.join(sizes)}]; make prefixes for these rows"
                )
            arrays[name] = array
        return SharedPrefixes(**arrays)

    def within(self, max_tokens: int, most_queries: int) -> "SharedPrefixes":
        """The same without what points out of the batch, whoever has made it.

        Pieces that are left follow one another, as kernels go through them up to the
        first of no tokens; parts are left whose records they all write.

        Args:
            max_tokens: that a row's table has room for.
            most_queries: of a piece.
        """
        room = min(max_tokens, HIGHEST)
        return _within(self, max_tokens=room, most_queries=most_queries)


# A function of its own: traced once for all layers of a model.
@functools.partial(jax.jit, static_argnames=("max_tokens", "most_queries"))
def _within(
    shared: SharedPrefixes, *, max_tokens: int, most_queries: int
) -> SharedPrefixes:
    """See `SharedPrefixes.within`."""
    rows, records = len(shared.order), shared.num_records
    row, first, end, queries, begin, stop, record, pieces = shared.work.T
    whole = (row >= 0) & (row < rows) & (first >= 0) & (queries > 0)
    whole &= (queries <= most_queries) & (first <= rows - queries)
    whole &= (begin >= 0) & (begin <= stop) & (stop <= end) & (end <= max_tokens)
    whole &= (record >= 0) & (record < records) & (pieces >= 0)
    work = jnp.where(whole[:, None], shared.work, 0)[jnp.argsort(~whole, stable=True)]
    written = jnp.zeros(records + 1, jnp.int32)
    written = written.at[jnp.where(whole, record, records)].set(1).at[records].set(0)
    before = jnp.cumsum(written, dtype=jnp.int32) - written
    record, count, query, _ = jnp.moveaxis(shared.parts, -1, 0)
    joined = (record >= 0) & (count > 0) & (query >= 0) & (query < most_queries)
    joined &= (record < records) & (count <= records - record)
    last = jnp.where(joined, record + count, 0)
    joined &= before[last] - before[jnp.where(joined, record, 0)] == count
    return SharedPrefixes(
        jnp.clip(shared.tokens, 0, max_tokens),
        jnp.clip(shared.order, 0, rows - 1),
        work,
        jnp.where(joined[..., None], shared.parts, -1),
    )
