"""How the CUDA kernel cuts its work: pure Python."""

import dataclasses
from collections.abc import Iterator

from fdjax.kernels.hopper import CLUSTERS, MULTIPROCESSORS

# What each warp takes at a time.
TILE_TOKENS = 16
# A cluster of 8 is what every device with clusters can launch.
MAX_SPLITS = 8
HEADS_PER_BLOCK = (1, 2, 4, 8)
WARPS = (4, 8, 16)
PARTS = (1, 2, 4, 8, 16)
# From how much room on a row counts as long: where two blocks of 16 warps for each row
# and head fill the machine, and elsewhere.
LONG_FOR_TWO_TOKENS = 1500
LONG_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Config:
    """Launch parameters.

    Attributes:
        splits: blocks along the tokens of a row. They are one cluster and add their
            partial results through shared memory.
        heads_per_block: key/value heads that a block serves; they share its warps.
        warps: of a block.
        parts: clusters along the tokens of a row. Where there are several, a second
            kernel adds what they leave in device memory.
    """

    splits: int
    heads_per_block: int
    warps: int
    parts: int = 1

    def part_floats(self, rows: int, num_heads: int, head_dim: int) -> int:
        """What the parts leave of all query heads (ffi/decode_attention/parts.cuh)."""
        records = 0 if self.parts == 1 else rows * num_heads * self.parts
        return records * (4 + head_dim)


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


def max_warps(head_dim: int, group: int) -> int:
    """The most warps of a block; it takes no more if told (`Geometry` in tiles.cuh)."""
    columns = -(-group // 8) * 8
    return 16 if head_dim in (64, 128) and head_dim * columns <= 1024 else 8


def candidates(call: Call) -> Iterator[Config]:
    """Every configuration that can serve a call."""
    for warps in WARPS:
        for heads in HEADS_PER_BLOCK:
            if call.num_kv_heads % heads == 0 and warps % heads == 0:
                for splits in range(1, MAX_SPLITS + 1):
                    yield from (Config(splits, heads, warps, parts) for parts in PARTS)


def heuristic(call: Call) -> Config:
    """A configuration by rule; the measurements are of an H200, 132 multiprocessors.

    Two blocks of 8 warps fit a multiprocessor. Placement decides more than anything: a
    cluster needs room in one group of some 16 multiprocessors, so larger clusters leave
    more of them idle (8 x 32768: 246 us with 2 splits, 258 with 3, 277 with 8).
    """
    pairs = max(1, call.rows * call.num_kv_heads)
    if pairs >= 256:
        # Pairs alone fill the machine. Several heads in a block read whole slots:
        # 256 x 1024 takes 246.9 us with 8, 250.0 with 2; 64 x 1024 the most with 8.
        return Config(1, _heads(call.num_kv_heads, at_most=pairs // 256), 8)
    two_fill = MULTIPROCESSORS // pairs == 2 and call.max_warps == 16
    if call.max_tokens >= (LONG_FOR_TWO_TOKENS if two_fill else LONG_TOKENS):
        return _streams(pairs)
    wanted = -(-192 // pairs)  # 8 x 1024: 14.3 us with 3 splits, 15.2 with 2
    useful = max(1, -(-call.max_tokens // (8 * TILE_TOKENS)))
    return Config(min(wanted, useful, MAX_SPLITS), 1, 8)


def _streams(pairs: int) -> Config:
    """For long rows: a block on every multiprocessor, 16 warps to hide arithmetic.

    2 splits of 16 warps and 3 of 8, layers of Llama-3-8B, ms: 4.11 and 4.14 at 8 x
    1500, 4.26 and 4.29 at 2048, 4.73 and 4.79 at 4096; the step of 8 x 1024 takes 4.09
    and 4.07: 65 tiles are one more than 32 warps take in two turns.

    Clusters of 4 blocks and more do not all run at once (`hopper.CLUSTERS`): beyond 3
    blocks a row and head have several clusters of 2. Layers of Llama-3-8B, ms, with a
    single cluster and with several: 4.79 and 4.73 at 1 x 32768, 6.78 and 5.81 at 2,
    9.33 and 7.77 at 4.
    """
    wanted = max(1, MULTIPROCESSORS // pairs)
    if wanted < 4:
        return Config(min(wanted, 3 if pairs <= CLUSTERS[3] else 2), 1, 16)
    return Config(2, 1, 16, max(parts for parts in PARTS if 2 * parts <= wanted))


def _heads(num_kv_heads: int, *, at_most: int) -> int:
    """The most heads of a block that divide all heads."""
    return max(h for h in HEADS_PER_BLOCK if h <= at_most and num_kv_heads % h == 0)
