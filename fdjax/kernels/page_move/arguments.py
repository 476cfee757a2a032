"""The arguments of `page_move`."""

from fdjax.kernels.paged import KVCache
from fdjax.notation import Array, Int32
from fdjax.pytree import pytree


@pytree
class PageMove:
    """One call of `page_move`.

    Attributes:
        kv: the pages. Donate it, and it is updated in place.
        sources: page ids, whose pages are copied; none is among `targets`.
        targets: page ids, where each page goes; distinct but for padding. An entry
            whose source or target is negative or not below `P` is padding, and copies
            nothing.
    """

    kv: KVCache
    sources: Int32[Array, " N"]
    targets: Int32[Array, " N"]
