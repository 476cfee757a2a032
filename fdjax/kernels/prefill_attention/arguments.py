"""The arguments of `prefill_attention`."""

import jax.numpy as jnp

from fdjax.kernels.paged import PagedAttention
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class PrefillAttention(PagedAttention):
    """One call of `prefill_attention`: a ragged batch of queries.

    The fields of `fdjax.kernels.paged.PagedAttention`, and two more. Row `r` has
    `lengths[r] - starts[r]` new tokens, or none if that is negative; their queries are
    neighbours in `q`. Queries that belong to no row are padding, and their results mean
    nothing: they may be NaN.

    Attributes:
        q: the queries of all rows.
        starts: position of the first query of each row; `None` says that every row
            starts at 0 (whole prompts).
        firsts: where in `q` the queries of each row begin, in ascending order; `None`
            says that every row has room for `T / B` of them.
    """

    q: Float[Array, "T Hq D"]
    starts: Int32[Array, " B"] | None
    firsts: Int32[Array, " B"] | None

    @property
    def num_rows(self) -> int:
        """`B`."""
        return self.page_table.shape[0]

    @property
    def room(self) -> int:
        """Queries that every row has room for, where `firsts` is `None`."""
        return self.q.shape[0] // max(self.num_rows, 1)

    @property
    def first_queries(self) -> Int32[Array, " B"]:
        """`firsts`, whatever form they have."""
        if self.firsts is not None:
            return self.firsts
        return jnp.arange(self.num_rows, dtype=jnp.int32) * self.room

    @property
    def first_positions(self) -> Int32[Array, " B"]:
        """`starts`, whatever form they have."""
        return jnp.zeros_like(self.lengths) if self.starts is None else self.starts
