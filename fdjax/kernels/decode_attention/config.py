"""The launch config of the CUDA kernel for a call, from its static sizes alone.

The kernel works off a plan (`fdjax.kernels.attention_plan`), which the GPU makes from
the lengths of the rows. A plan is a list of items; an item is the attention of some
key/value heads over a row, or over a piece of a long row. Clusters of thread blocks
take one item after the other. The launch config says how many clusters there are, how
many blocks a cluster has, and how many warps a block.
"""

import dataclasses
from collections.abc import Iterator

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan.shape import (
    INVARIANT_PIECE_TOKENS,
    ITEM_TOKENS,
    TILE_TOKENS,
    PlanShape,
    invariant_shape,
    plan_shape,
)
from fdjax.kernels.chip import chip
from fdjax.kernels.decode_attention import table

# The largest cluster that every GPU with clusters can launch.
MAX_SPLITS = ffi.limit("decode_attention", "max_splits")
# What `LaunchConfig.heads` and `LaunchConfig.warps` can be.
HEADS = (1, 2, 4, 8)
WARPS = (4, 8, 16)
# Cluster sizes tried, largest first, where one block fills an SM; 6 and 7 gain nothing
# over 5 (16 rows and heads of 1,072 tokens: 10.6, 10.8 and 17.1 us).
_ALONE = (8, 5, 4, 3, 2)
# What an item costs there beside its tokens, of each block: no other block hides it.
# With 64 tokens, half of all items waited for a second turn (8 rows of GLM-4 of up to
# 1,072 tokens: 21 us, and 9.9 with this).
_ALONE_ITEM_TOKENS = 512


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """How the CUDA kernel is launched.

    Attributes:
        splits: blocks of a cluster. They divide the tokens of an item among them, and
            add their partial results through distributed shared memory.
        heads: key/value heads of an item at most, among which the warps of a block are
            divided. 1 where there are several splits.
        warps: warps of a block.
        slots: clusters of the grid, to which the plan deals out the items.
        in_runs: see `Sizes`.
        item_tokens: what an item costs beside its tokens (`PlanShape`).
        piece_tokens: each row is cut by itself (`PlanShape`); 0: it is not.
        room: tokens that a row's pages have room for, where `piece_tokens` is not 0.
    """

    splits: int
    heads: int
    warps: int
    slots: int
    in_runs: bool = False
    item_tokens: int = ITEM_TOKENS
    piece_tokens: int = 0
    room: int = 0

    def __str__(self) -> str:
        blocks = "block" if self.splits == 1 else "blocks"
        return f"{self.slots} clusters of {self.splits} {blocks} of {self.warps} warps"

    def plan_shape(self, rows: int, num_kv_heads: int) -> PlanShape:
        """The shape of the plan that the kernel needs with this launch config."""
        if self.piece_tokens:
            return invariant_shape(
                rows,
                num_kv_heads,
                slots=self.slots,
                heads=self.heads,
                piece_tokens=self.piece_tokens,
                room=self.room,
            )
        return plan_shape(
            rows,
            num_kv_heads,
            slots=self.slots,
            heads=self.heads,
            item_tokens=self.item_tokens,
        )

    def attributes(self, shape: PlanShape) -> "LaunchAttributes":
        """This launch config and the plan's room, as handlers are told them."""
        return LaunchAttributes(
            slots=self.slots,
            splits=self.splits,
            heads=self.heads,
            warps=self.warps,
            max_items=shape.max_items,
            max_pieces=shape.max_pieces,
            in_runs=self.in_runs,
        )


@dataclasses.dataclass(frozen=True)
class LaunchAttributes:
    """A `LaunchConfig` as handlers are told it, and what the plan has room for."""

    slots: int
    splits: int
    heads: int
    warps: int
    max_items: int
    max_pieces: int
    in_runs: bool


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a call that its launch config depends on; static under jit.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        max_tokens: of a row, as many as its page table has room for. How long rows are
            is data: only the plan knows it.
        max_warps: of a block at most (the function `max_warps`).
        in_runs: the page table has slots, of which most are neighbours: TMA copies
            them. False for beams whose shared prefix is read separately: their own
            tokens lie scattered over other beams' pages, and plain loads are 3 to 8 %
            faster (16 to 64 prompts of 4 beams with the heads of Llama-2-13B).
        alone: a block fills an SM (`fills_sm`).
        invariant: a row's result must not depend on other rows by a single bit.
    """

    rows: int
    num_kv_heads: int
    max_tokens: int
    max_warps: int = WARPS[-1]
    in_runs: bool = False
    alone: bool = False
    invariant: bool = False

    @staticmethod
    def of(
        rows: int,
        num_kv_heads: int,
        max_tokens: int,
        *,
        head_dim: int,
        group: int,
        page_size: int,
        in_runs: bool = False,
    ) -> "Sizes":
        """Sizes of a call, from its heads and pages (`max_warps`, `fills_sm`)."""
        warps = max_warps(head_dim, group, page_size, in_runs=in_runs)
        alone = fills_sm(head_dim, group)
        return Sizes(rows, num_kv_heads, max_tokens, warps, in_runs, alone)

    @property
    def pairs(self) -> int:
        """Pairs of a row and a key/value head: `B * Hkv`, at least 1."""
        return max(1, self.rows * self.num_kv_heads)


def fills_sm(head_dim: int, group: int) -> bool:
    """Whether a block of 8 warps leaves another no registers on its SM.

    Seen of heads of 256, and of more than 8 query heads of 128 for a key/value head.

    Args:
        head_dim: `D`.
        group: query heads of a key/value head.
    """
    return head_dim * _columns(group) >= 2048


def _columns(group: int) -> int:
    """Columns of a tile of scores: query heads, in eights."""
    return -(-group // 8) * 8


def max_warps(
    head_dim: int, group: int, page_size: int, *, in_runs: bool = False
) -> int:
    """The most warps of a block; a launch config that asks for more gets this many.

    16 where 128 registers are enough for a thread (`Geometry` in tiles.cuh): where a
    warp holds few numbers, and TMA copies load the pages. Else 8.

    Args:
        head_dim: `D`.
        group: query heads of a key/value head.
        page_size: `Z`.
        in_runs: see `Sizes`.
    """
    few = head_dim in (64, 128) and head_dim * _columns(group) <= 1024
    return 16 if few and (in_runs or page_size % TILE_TOKENS == 0) else 8


def candidates(sizes: Sizes) -> Iterator[LaunchConfig]:
    """Every launch config that can serve a call of these sizes."""
    for warps in WARPS:
        for heads in HEADS:
            if sizes.num_kv_heads % heads == 0 and warps % heads == 0:
                yield _config(sizes, 1, heads, warps)
        for splits in range(2, MAX_SPLITS + 1):
            yield _config(sizes, splits, 1, warps)


def heuristic(sizes: Sizes) -> LaunchConfig:
    """The launch config by rule, and by what was measured of the GPU (`table`).

    Times here are of an H200, which has 132 SMs.

    `8 x 1024` is 8 rows of 1,024 tokens with the heads of Llama-3-8B.

    The rule knows no lengths. It need not: the plan divides rows that are longer than
    others into pieces, and where rows are few it gives their heads to different items.
    Two blocks of 8 warps fit an SM. What matters most is that clusters find room: all
    blocks of a cluster run in one group of some 16 SMs, so larger clusters leave more
    SMs idle (8 x 32768: 246 us with 2 splits, 258 with 3, 277 with 8).
    """
    if sizes.invariant:
        return _invariant(sizes)
    measured = table.PART.find()
    if sizes.pairs >= measured.blocks_two_an_sm:
        # Several heads in a block read whole slots: 256 x 1024 takes 246.9 us with 8,
        # 250.0 with 2.
        heads = max(h for h in HEADS if sizes.num_kv_heads % h == 0)
        return _config(sizes, 1, heads, 8)
    two_fill = chip().num_sms // sizes.pairs == 2 and sizes.max_warps == 16
    if sizes.max_tokens >= measured.long_tokens(two_fill=two_fill):
        return _config(sizes, _long_splits(sizes.pairs), 1, 16)
    useful = max(1, -(-sizes.max_tokens // (8 * TILE_TOKENS)))
    if sizes.alone:
        return _alone(sizes, useful)
    wanted = -(-192 // sizes.pairs)  # 8 x 1024: 14.3 us with 3 splits, 15.2 with 2
    return _config(sizes, min(wanted, useful, MAX_SPLITS), 1, 8)


def _invariant(sizes: Sizes) -> LaunchConfig:
    """The one launch config whose items follow from their row alone.

    How many clusters there are changes only who does an item.
    """
    heads = max(h for h in HEADS if sizes.num_kv_heads % h == 0)
    config = _config(sizes, 1, heads, 8)
    return dataclasses.replace(
        config, piece_tokens=INVARIANT_PIECE_TOKENS, room=sizes.max_tokens
    )


def _alone(sizes: Sizes, useful: int) -> LaunchConfig:
    """The launch config of a kernel of which one block fits an SM.

    Args:
        sizes: of rows that are not long.
        useful: splits that have something to do.
    """
    room = chip().clusters
    fit = (s for s in _ALONE if s <= useful and sizes.pairs <= room.get(s, 0))
    return _config(sizes, next(fit, 1), 1, 8)


def _long_splits(pairs: int) -> int:
    """Splits for long rows: a block of 16 warps on every SM, to hide arithmetic.

    With 2 splits of 16 warps, and with 3 of 8, all layers of Llama-3-8B take 4.11 and
    4.14 ms at 8 x 1500, 4.26 and 4.29 at 8 x 2048, 4.73 and 4.79 at 8 x 4096; but 4.09
    and 4.07 at 8 x 1024, where 65 tiles are one more than 32 warps take in two turns.

    Clusters of 4 blocks and more leave SMs idle (`Chip.clusters`): where there are
    SMs for 4 blocks a row and head, clusters have 2 and the plan cuts the rows.
    """
    wanted = max(1, chip().num_sms // pairs)
    if wanted < 4:
        return min(wanted, 3 if pairs <= chip().at_once(3) else 2)
    return 2


def _config(sizes: Sizes, splits: int, heads: int, warps: int) -> LaunchConfig:
    """A launch config with as many slots as clusters of that size run at once.

    Where that is not known, one for each row and key/value head; and so where several
    blocks may fit an SM and clusters have more than 4: they were measured so.
    """
    two_fit = warps <= 8 and sizes.max_warps == WARPS[-1]
    if splits == 1:
        slots = table.PART.find().blocks_two_an_sm if two_fit else chip().num_sms
    elif splits <= 4 or sizes.alone:
        slots = chip().clusters.get(splits, 0) * (2 if two_fit else 1)
    else:
        slots = sizes.pairs
    item_tokens = _ALONE_ITEM_TOKENS * splits if sizes.alone else ITEM_TOKENS
    return LaunchConfig(
        splits, heads, warps, slots or sizes.pairs, sizes.in_runs, item_tokens
    )
