"""The arguments of `token_places`, and what it returns."""

from typing import NamedTuple

from fdjax.kernels.paged import PageView
from fdjax.notation import Array, Int32
from fdjax.pytree import pytree, static


@pytree
class TokenPlaces:
    """One call of `token_places`.

    Attributes:
        pages: the rows that the tokens belong to.
        num_tokens: `T`; static.
        page_size: of the cache; static.
    """

    pages: PageView
    num_tokens: int = static()
    page_size: int = static()


class Places(NamedTuple):
    """Where tokens stand.

    Attributes:
        positions: in their sequences.
        slots: in the cache.
    """

    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
