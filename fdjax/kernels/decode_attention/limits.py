"""What an implementation of `decode_attention` takes, and why not what it does not."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fdjax.kernels.decode_attention.arguments import DecodeAttention

ANY = range(1, 2**31)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The calls that an implementation takes.

    Attributes:
        dtypes: of queries, keys and values.
        head_dims: sizes of a head, `D`.
        page_sizes: slots of a page, `Z`.
        groups: query heads of a key/value head, `G`.
        rows: rows of a batch, `B`.
    """

    dtypes: Sequence[jax.typing.DTypeLike]
    head_dims: Sequence[int]
    page_sizes: Sequence[int] = ANY
    groups: Sequence[int] = ANY
    rows: Sequence[int] = range(2**31)

    def refuse(self, call: DecodeAttention) -> str | None:
        """Why a call is not among them, or `None`."""
        rows, num_heads, head_dim = call.q.shape
        page_size, num_kv_heads = call.kv.shape[3:5]
        integers = (call.page_table.dtype, call.lengths.dtype)
        if call.q.dtype not in self.dtypes:
            names = [jnp.dtype(dtype).name for dtype in self.dtypes]
            return f"q is {call.q.dtype}; it takes {_listed(names)}"
        if any(dtype != jnp.int32 for dtype in integers):
            return (
                f"page_table is {integers[0]} and lengths {integers[1]}; it takes int32"
            )
        if call.group not in self.groups:
            return (
                f"{num_heads} query heads over {num_kv_heads} key/value heads; it "
                f"takes {_listed(self.groups)} for each"
            )
        sizes = (
            (head_dim in self.head_dims, f"head size {head_dim}", self.head_dims),
            (page_size in self.page_sizes, f"page size {page_size}", self.page_sizes),
            (rows in self.rows, f"{rows} rows", self.rows),
        )
        for taken, found, limits in sizes:
            if not taken:
                return f"{found}; it takes {_listed(limits)}"
        return None


def _listed(values: Sequence[object]) -> str:
    """A sequence in words: "1 to 16" for a range, else "64, 80 and 96"."""
    if isinstance(values, range):
        return f"{values[0]} to {values[-1]}"
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
