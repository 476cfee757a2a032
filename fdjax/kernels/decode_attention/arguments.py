"""The arguments of `decode_attention`."""

from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.paged import PagedAttention
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Attended = tuple[Float[Array, "B Hq D"], Int32[Array, "B Hkv"]]
"""The result, and how many query heads of each group were computed again."""


@pytree
class DecodeAttention(PagedAttention):
    """One call of `decode_attention`.

    The fields of `fdjax.kernels.paged.PagedAttention`, and one more. The one query of
    each row is that of its last token (`PageView.decoding`); a row of length 0 gives
    zeros.

    Attributes:
        q: the queries, at position `lengths - 1` of each row.
        unified: the asynchronous scheme with this maximum; `None` is the synchronised
            one. The result is the same up to rounding; only the counts depend on it.
    """

    q: Float[Array, "B Hq D"]
    unified: UnifiedMax | None = static()
