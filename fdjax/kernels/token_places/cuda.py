"""`token_places` as one CUDA kernel, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.op import Impl
from fdjax.kernels.token_places.arguments import Places, TokenPlaces

NAME = "token_places"
MAX_PAGE_SIZE = ffi.limit(NAME, "max_page_size")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the handler."""

    page_size: int


def run(call: TokenPlaces) -> Places:
    """See `fdjax.kernels.token_places.token_places`."""
    pages = call.pages
    by_token = jax.ShapeDtypeStruct((call.num_tokens,), jnp.int32)
    handler = jax.ffi.ffi_call(
        ffi.target(NAME), (by_token, by_token), vmap_method="sequential"
    )
    positions, slots = handler(
        pages.page_table,
        pages.lengths,
        pages.first_positions,
        pages.first_tokens(call.num_tokens),
        attributes=ffi.attributes(Attributes(call.page_size)),
    )
    return Places(positions, slots)


def refuse(call: TokenPlaces) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    if call.page_size > MAX_PAGE_SIZE:
        return f"page_size is {call.page_size}; it takes up to {MAX_PAGE_SIZE}"
    return ffi.refuse(NAME, platform="gpu")


IMPL = Impl(run, refuse, batch_invariant=True)
