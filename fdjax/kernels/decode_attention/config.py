"""Launch configs of the CUDA kernel, and which to take: pure Python."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fdjax.kernels.attention_plan.shape import PlanShape, plan_shape
from fdjax.kernels.hopper import CLUSTERS, NUM_SMS

# What each warp takes at a time.
TILE_TOKENS = 16
# A cluster of 8 is what every device with clusters can launch.
MAX_SPLITS = 8
HEADS = (1, 2, 4, 8)
WARPS = (4, 8, 16)
# From how much room on a row counts as long: where two blocks of 16 warps for each row
# and head fill the machine, and elsewhere.
LONG_FOR_TWO_TOKENS = 1500
LONG_TOKENS = 8192
# Blocks of 8 warps that run at once, where two fit an SM. 8 fewer than fit:
# 256 x 1024 takes 246.2 us with 256, 250.3 with 264, of which 8 have nothing to do.
PAIRS_OF_BLOCKS = 256


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """How the CUDA kernel is launched.

    Attributes:
        splits: blocks along the tokens of an item of the plan. They are one cluster and
            add their partial results through shared memory.
        heads: key/value heads that a block serves at most; they share its warps. 1
            where there are several splits.
        warps: of a block.
        slots: clusters of the grid, among which the plan shares the items out.
    """

    splits: int
    heads: int
    warps: int
    slots: int

    def plan_shape(self, rows: int, num_kv_heads: int) -> PlanShape:
        """Of the plan that the kernel needs."""
        return plan_shape(rows, num_kv_heads, slots=self.slots, heads=self.heads)

    def attributes(self, shape: PlanShape) -> dict[str, np.int64]:
        """What a handler is told of it, and of the plan's room."""
        return {
            "slots": np.int64(self.slots),
            "splits": np.int64(self.splits),
            "heads": np.int64(self.heads),
            "warps": np.int64(self.warps),
            "max_items": np.int64(shape.max_items),
            "max_pieces": np.int64(shape.max_pieces),
        }


@dataclasses.dataclass(frozen=True)
class Call:
    """What the choice depends on; all of it is static under jit.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        max_tokens: what the page table has room for; lengths are data.
        max_warps: what a block may have, see `max_warps`.
    """

    rows: int
    num_kv_heads: int
    max_tokens: int
    max_warps: int = WARPS[-1]

    @property
    def pairs(self) -> int:
        """Rows and key/value heads."""
        return max(1, self.rows * self.num_kv_heads)


def max_warps(head_dim: int, group: int, page_size: int) -> int:
    """The most warps of a block; it takes no more if told.

    16 where 128 registers are enough for a thread (`Geometry` in tiles.cuh): with few
    numbers a warp, and pages that TMA fetches.
    """
    columns = -(-group // 8) * 8
    few = head_dim in (64, 128) and head_dim * columns <= 1024
    return 16 if few and page_size % TILE_TOKENS == 0 else 8


def candidates(call: Call) -> Iterator[LaunchConfig]:
    """Every configuration that can serve a call."""
    for warps in WARPS:
        for heads in HEADS:
            if call.num_kv_heads % heads == 0 and warps % heads == 0:
                yield _config(call, 1, heads, warps)
        for splits in range(2, MAX_SPLITS + 1):
            yield _config(call, splits, 1, warps)


def heuristic(call: Call) -> LaunchConfig:
    """A configuration by rule; the measurements are of an H200, 132 SMs.

    It knows no lengths: the plan cuts rows that are longer than others, and parts heads
    where rows are few. Two blocks of 8 warps fit an SM. Placement decides
    more than anything: a cluster needs room in one group of some 16 SMs, so
    larger clusters leave more of them idle (8 x 32768: 246 us with 2 splits, 258 with
    3, 277 with 8).
    """
    if call.pairs >= PAIRS_OF_BLOCKS:
        # Several heads in a block read whole slots: 256 x 1024 takes 246.9 us with 8,
        # 250.0 with 2.
        heads = max(h for h in HEADS if call.num_kv_heads % h == 0)
        return _config(call, 1, heads, 8)
    two_fill = NUM_SMS // call.pairs == 2 and call.max_warps == 16
    if call.max_tokens >= (LONG_FOR_TWO_TOKENS if two_fill else LONG_TOKENS):
        return _config(call, _long_splits(call.pairs), 1, 16)
    wanted = -(-192 // call.pairs)  # 8 x 1024: 14.3 us with 3 splits, 15.2 with 2
    useful = max(1, -(-call.max_tokens // (8 * TILE_TOKENS)))
    return _config(call, min(wanted, useful, MAX_SPLITS), 1, 8)


def _long_splits(pairs: int) -> int:
    """For long rows: a block on every SM, 16 warps to hide arithmetic.

    2 splits of 16 warps and 3 of 8, layers of Llama-3-8B, ms: 4.11 and 4.14 at 8 x
    1500, 4.26 and 4.29 at 2048, 4.73 and 4.79 at 4096; the step of 8 x 1024 takes 4.09
    and 4.07: 65 tiles are one more than 32 warps take in two turns.

    Clusters of 4 blocks and more do not all run at once (`hopper.CLUSTERS`): beyond 3
    blocks a row and head the plan cuts rows for clusters of 2.
    """
    wanted = max(1, NUM_SMS // pairs)
    if wanted < 4:
        return min(wanted, 3 if pairs <= CLUSTERS[3] else 2)
    return 2


def _config(call: Call, splits: int, heads: int, warps: int) -> LaunchConfig:
    """With as many slots as clusters run at once, if it is known how many."""
    two_fit = warps <= 8 and call.max_warps == 16
    if splits == 1:
        slots = PAIRS_OF_BLOCKS if two_fit else NUM_SMS
    else:
        slots = CLUSTERS.get(splits, 0) * (2 if two_fit else 1)
    return LaunchConfig(splits, heads, warps, slots or call.pairs)
