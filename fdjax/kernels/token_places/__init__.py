"""Where the tokens of a ragged batch stand, in their sequences and in the cache."""

from fdjax.kernels.op import Op
from fdjax.kernels.paged import PageView
from fdjax.kernels.token_places import cuda, reference
from fdjax.kernels.token_places.arguments import Places, TokenPlaces

__all__ = ["OP", "Places", "TokenPlaces", "token_places"]

OP = Op(
    "token_places", reference.token_places, {"cuda": cuda.IMPL}, batch_invariant=True
)


def token_places(pages: PageView, num_tokens: int, *, page_size: int) -> Places:
    """Positions and slots of the `T` tokens of a call.

    The token at place `t` belongs to the last row `r` with `firsts[r] <= t`. There it
    has the position `starts[r] + t - firsts[r]`, and its key and value go to slot
    `page * Z + position % Z` of the page that the row has there. The slot is -1 for
    padding, for tokens past their row's table and for ids that no cache has room for,
    and past the end of the cache for other absent pages: nothing is written.

    Args:
        pages: the rows, in the order of their tokens.
        num_tokens: `T`.
        page_size: `Z`, of the cache.
    """
    return OP(TokenPlaces(pages, num_tokens, page_size))
