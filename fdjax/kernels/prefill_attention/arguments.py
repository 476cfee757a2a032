"""The arguments of `prefill_attention`."""

from fdjax.kernels.paged import PagedAttention
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class PrefillAttention(PagedAttention):
    """One call of `prefill_attention`.

    The fields of `fdjax.kernels.paged.PagedAttention`, and one more; queries at or past
    `lengths` are padding, and their results mean nothing.

    Attributes:
        q: the queries; query `i` of a row stands at position `starts + i`.
        starts: position of the first query of each row; `None` says that every row
            starts at 0 (whole prompts).
    """

    q: Float[Array, "B S Hq D"]
    starts: Int32[Array, " B"] | None
