"""Launch configs of the Pallas kernel, and which to take: pure Python."""

import dataclasses
from collections.abc import Iterator

from fdjax.kernels.chip import SHARED_BYTES, chip

# Rows of a wgmma, Hopper's tensor core instruction: tokens are its rows.
TENSOR_CORE_ROWS = 64
TILES = (64, 128)
STAGES = (2, 3, 4, 6)
MAX_SPLITS = 32


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """How the Pallas kernel is launched.

    Attributes:
        tile_tokens: tokens of a pipeline stage; a multiple of 64 and of the page size.
        stages: tiles of keys and values that have room in shared memory.
        splits: blocks along the tokens of a row; more than one take a second kernel.
    """

    tile_tokens: int
    stages: int
    splits: int


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the choice depends on; all of it is static under jit.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        columns: query heads of a group, padded to the tensor core's 8 columns.
        head_dim: `D`.
        page_size: `Z`.
        max_tokens: what the page table has room for; lengths are data.
    """

    rows: int
    num_kv_heads: int
    columns: int
    head_dim: int
    page_size: int
    max_tokens: int


def shared_bytes(sizes: Sizes, config: LaunchConfig) -> int:
    """Shared memory of a block, in bytes; an upper bound.

    The ring, and beside it queries, weights, results, scratch of reductions, barriers
    and alignment.
    """
    row = 2 * sizes.head_dim
    ring = config.stages * config.tile_tokens * 2 * row
    queries_and_results = 2 * sizes.columns * row
    weights = 2 * 2 * sizes.columns * config.tile_tokens
    scores = 2 * 4 * sizes.columns * (config.splits + 1)
    return ring + queries_and_results + weights + scores + 8 * 1024


def fits(sizes: Sizes, config: LaunchConfig) -> bool:
    """Whether a launch config can serve a sizes."""
    return (
        config.tile_tokens % TENSOR_CORE_ROWS == 0
        and config.tile_tokens % sizes.page_size == 0
        and shared_bytes(sizes, config) <= SHARED_BYTES
    )


def refuse(sizes: Sizes) -> str | None:
    """Why no launch config can serve a call, or `None`."""
    tile = max(TENSOR_CORE_ROWS, sizes.page_size)
    if fits(sizes, LaunchConfig(tile, min(STAGES), 1)):
        return None
    return (
        f"pages of {sizes.page_size} tokens and heads of {sizes.head_dim}: "
        f"{min(STAGES)} tiles do not fit in shared memory"
    )


def candidates(sizes: Sizes) -> Iterator[LaunchConfig]:
    """Every launch config that can serve a sizes."""
    for tile in TILES:
        for stages in STAGES:
            for splits in range(1, MAX_SPLITS + 1):
                config = LaunchConfig(tile, stages, splits)
                if fits(sizes, config):
                    yield config


def heuristic(sizes: Sizes) -> LaunchConfig:
    """A launch config by rule.

    Two or three blocks share an SM, so that one block's start and end hide
    behind the others' reading.
    """
    tile = max(TENSOR_CORE_ROWS, sizes.page_size)
    stages = next(s for s in (3, 2) if fits(sizes, LaunchConfig(tile, s, 1)))
    pairs = max(1, sizes.rows * sizes.num_kv_heads)
    tiles = max(1, -(-sizes.max_tokens // tile))
    blocks = 2 * chip().num_sms
    splits = min(-(-blocks // pairs), tiles, MAX_SPLITS)
    return LaunchConfig(tile, stages, splits if pairs < blocks else 1)
