"""What a plan is made for, and where its parts lie; nothing here depends on lengths."""

import dataclasses

from fdjax.kernels import ffi

MAX_ROWS = ffi.limit("attention_plan", "max_rows")
"""Of a batch: what the block that makes the plan has room for."""
MAX_ROW_PIECES = ffi.limit("attention_plan", "max_row_pieces")
"""Of a row and head that is cut by itself."""
INVARIANT_PIECE_TOKENS = 1024
"""Of a piece, where each row is cut by itself."""
ITEM_TOKENS = 64
"""What an item costs beside its tokens where another block of its SM hides the most."""
TILE_TOKENS = 16
"""Tokens that a warp takes at a time: what pieces are counted in."""
HEADER = 8
ITEM = 8
"""Integers of the header and of an item (ffi/attention_plan/plan.h checks the sum)."""


@dataclasses.dataclass(frozen=True)
class PlanShape:
    """The static part of a plan.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        slots: clusters of blocks that run at once.
        heads: key/value heads of an item at most; a power of two that divides `Hkv`.
        max_items: what the plan has room for.
        max_pieces: items of rows that are cut, at most; each leaves a partial result.
        item_tokens: what an item costs beside its tokens: its beginning and end, in
            tokens of a head.
        piece_tokens: 0: rows are cut as is best for all of them. Else each by itself,
            into pieces of so many tokens, or `MAX_ROW_PIECES` larger ones: a row's
            items do not depend on other rows.
    """

    rows: int
    num_kv_heads: int
    slots: int
    heads: int
    max_items: int
    max_pieces: int
    item_tokens: int
    piece_tokens: int = 0

    @property
    def items_at(self) -> int:
        """Integers before the first item: the header and a counter a row and head."""
        return HEADER + -(-self.rows * self.num_kv_heads // 8) * 8

    @property
    def size(self) -> int:
        """Integers of the plan."""
        return self.items_at + self.max_items * ITEM

    def record_floats(self, group: int, head_dim: int) -> int:
        """What the pieces leave of all query heads (ffi/decode_attention/merge.cuh)."""
        return self.max_pieces * group * (4 + head_dim)


def plan_shape(
    rows: int,
    num_kv_heads: int,
    *,
    slots: int,
    heads: int,
    item_tokens: int = ITEM_TOKENS,
) -> PlanShape:
    """The shape of a plan with as much room as plans of its kind need.

    Whole rows are `B * Hkv / heads` items; a plan that splits more than four items off
    for each slot, or leaves more than two pieces, is not worth its beginnings and ends.
    """
    return PlanShape(
        rows,
        num_kv_heads,
        slots,
        heads,
        max_items=rows * num_kv_heads // heads + 4 * slots,
        max_pieces=2 * slots,
        item_tokens=item_tokens,
    )


def invariant_shape(
    rows: int,
    num_kv_heads: int,
    *,
    slots: int,
    heads: int,
    piece_tokens: int,
    room: int,
) -> PlanShape:
    """The shape of a plan in which each row is cut by itself (`batch_invariant`).

    Args:
        rows: `B`.
        num_kv_heads: `Hkv`.
        slots: as in `PlanShape`; so are `heads` and `piece_tokens`.
        heads: of an item at most.
        piece_tokens: of a piece, in whole tiles.
        room: tokens of a row in its pages.
    """
    pieces = rows * num_kv_heads * min(MAX_ROW_PIECES, room // piece_tokens + 1)
    return PlanShape(
        rows,
        num_kv_heads,
        slots=slots,
        heads=heads,
        max_items=pieces + slots,
        max_pieces=pieces,
        item_tokens=ITEM_TOKENS,
        piece_tokens=piece_tokens,
    )
