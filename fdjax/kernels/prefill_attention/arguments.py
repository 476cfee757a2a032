"""The arguments of `prefill_attention`."""

from fdjax.kernels.paged import PagedAttention
from fdjax.pytree import pytree


@pytree
class PrefillAttention(PagedAttention):
    """One call of `prefill_attention`: a ragged batch of queries.

    The fields of `fdjax.kernels.paged.PagedAttention`. The queries are those of the new
    tokens of each row; the results of queries that belong to no row mean nothing: they
    may be NaN.
    """
