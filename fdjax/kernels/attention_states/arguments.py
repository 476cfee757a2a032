"""The arguments of `attention_states`."""

from typing import NamedTuple

from fdjax.kernels.paged import PagedAttention
from fdjax.notation import Array, Int32, UInt32
from fdjax.pytree import pytree


class KeyRange(NamedTuple):
    """A part of the keys of each row: those at positions from `first` up to `end`.

    Attributes:
        first: position of the first key.
        end: position after the last one.
    """

    first: Int32[Array, " B"]
    end: Int32[Array, " B"]


@pytree
class Attention(PagedAttention):
    """One call of `attention_states`.

    The fields of `fdjax.kernels.paged.PagedAttention`, and two more.

    Attributes:
        tree: which new tokens of its row each query sees, as bits: bit `i % 32` of word
            `i // 32` stands for new token `i`. Those without a bit are seen as if they
            had one that is set. `None` sets all of them.
        keys: the part of each row's keys that is attended to; `None`: all of them.
    """

    tree: UInt32[Array, "T N"] | None = None
    keys: KeyRange | None = None
