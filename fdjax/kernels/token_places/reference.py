"""The definition of `token_places`."""

from fdjax.kernels.token_places.arguments import Places, TokenPlaces


def token_places(call: TokenPlaces) -> Places:
    """See `fdjax.kernels.token_places.token_places`."""
    pages, count = call.pages, call.num_tokens
    slots = pages.slots(count, page_size=call.page_size)
    return Places(pages.positions(count), slots)
