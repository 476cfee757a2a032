"""What one forward pass reads and writes besides weights: tokens, places and pages."""

from typing import Literal

import jax.numpy as jnp

from fdjax.kernels.paged import row_of_queries
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static


@pytree
class Batch:
    """The tokens of one forward pass and where they stand.

    Attributes:
        tokens: token ids, rows and positions flattened.
        positions: position of each token in its sequence.
        slots: where each token's key and value go, `page * Z + slot`; negative or
            past the end writes nothing.
        page_table: pages of each row in order; ids `>= P` are absent.
        lengths: tokens of each row in the KV array once this pass has written.
        phase: "prefill" (any number of tokens a row) or "decode" (one).
        starts: position of each row's first token in a prefill; `None` says 0.
        firsts: where in a prefill's tokens those of each row begin; `None` says that
            every row has room for `T / B`.
        wanted: tokens whose hidden states are wanted, fewer than `T`; `None`: all.
            The last layer computes nothing but keys and values for the others.
    """

    tokens: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    page_table: Int32[Array, "B W"]
    lengths: Int32[Array, " B"]
    phase: Literal["prefill", "decode"] = static()
    starts: Int32[Array, " B"] | None = None
    firsts: Int32[Array, " B"] | None = None
    wanted: Int32[Array, " U"] | None = None

    @property
    def num_rows(self) -> int:
        """`B`."""
        return self.page_table.shape[0]


def select(
    x: Float[Array, "T N"], wanted: Int32[Array, " U"] | None
) -> Float[Array, "U N"]:
    """The rows of the tokens wanted; `None`: of all."""
    return x if wanted is None else x[wanted]


def prefill_batch(
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"] | None = None,
    *,
    page_size: int,
) -> Batch:
    """Prompts, or parts of them, padded to one length; padding is never stored."""
    rows, width = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    if starts is not None:
        positions = positions + starts[:, None]
    slots = _slots(page_table, positions, page_size=page_size)
    slots = jnp.where(positions < lengths[:, None], slots, -1)
    return Batch(
        tokens=tokens.reshape(-1),
        positions=positions.reshape(-1),
        slots=slots.reshape(-1),
        page_table=page_table,
        lengths=lengths,
        phase="prefill",
        starts=starts,
    )


def packed_batch(
    tokens: Int32[Array, " T"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"],
    *,
    page_size: int,
) -> Batch:
    """Prompts, or parts of them, one after the other; what is past the last is padding.

    Row `r` has `lengths[r] - starts[r]` tokens.
    """
    ends = jnp.cumsum(lengths - starts)
    firsts = ends - (lengths - starts)
    place = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    rows = row_of_queries(firsts, num_queries=tokens.shape[0])
    positions = place + (starts - firsts)[rows]
    slots = _slots(page_table[rows], positions[:, None], page_size=page_size)[:, 0]
    return Batch(
        tokens=tokens,
        positions=positions,
        slots=jnp.where(place < ends[-1], slots, -1),
        page_table=page_table,
        lengths=lengths,
        phase="prefill",
        starts=starts,
        firsts=firsts,
    )


def decode_batch(
    tokens: Int32[Array, " B"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    *,
    page_size: int,
) -> Batch:
    """One new token a row, after the `lengths` tokens its pages already hold."""
    slots = _slots(page_table, lengths[:, None], page_size=page_size)
    return Batch(
        tokens=tokens,
        positions=lengths,
        slots=slots[:, 0],
        page_table=page_table,
        lengths=lengths + 1,
        phase="decode",
    )


def _slots(
    page_table: Int32[Array, "B W"], positions: Int32[Array, "B S"], *, page_size: int
) -> Int32[Array, "B S"]:
    """Slot of each position; -1 past the row's table, so that nothing is written."""
    index = positions // page_size
    inside = index < page_table.shape[1]
    pages = jnp.take_along_axis(page_table, index, axis=1, mode="clip")
    return jnp.where(inside, pages * page_size + positions % page_size, -1)
