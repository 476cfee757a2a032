"""The arguments of `prefill_attention`."""

from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import PagedAttention
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Attended = tuple[Float[Array, "T Hq D"], Int32[Array, " B"]]
"""The result, and how many query heads of each row's tokens were computed again."""


@pytree
class PrefillAttention(PagedAttention):
    """One call of `prefill_attention`: a ragged batch of queries.

    The fields of `fdjax.kernels.paged.PagedAttention`, and one more. The queries are
    those of the new tokens of each row; the results of queries that belong to no row
    mean nothing: they may be NaN.

    Attributes:
        unified: the asynchronous scheme with this maximum; `None` is the synchronised
            one. The result is the same up to rounding; only the counts depend on it.
    """

    unified: UnifiedMax | None = static(default=None)
