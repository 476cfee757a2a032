"""How the CUDA kernel cuts its work: pure Python."""

import dataclasses
from collections.abc import Iterator

# What each warp takes at a time.
TILE_TOKENS = 16
# A cluster of 8 is what every device with clusters can launch.
MAX_SPLITS = 8
HEADS_PER_BLOCK = (1, 2, 4, 8)
WARPS = (4, 8, 16)
LONG_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Config:
    """Launch parameters.

    Attributes:
        splits: blocks along the tokens of a row. They are one cluster and add their
            partial results through shared memory.
        heads_per_block: key/value heads that a block serves; they share its warps.
        warps: of a block.
    """

    splits: int
    heads_per_block: int
    warps: int


@dataclasses.dataclass(frozen=True)
class Call:
    """What the choice depends on; all of it is static under jit.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        max_tokens: what the page table has room for; lengths are data.
    """

    rows: int
    num_kv_heads: int
    max_tokens: int


def candidates(call: Call) -> Iterator[Config]:
    """Every configuration that can serve a call."""
    for warps in WARPS:
        for heads in HEADS_PER_BLOCK:
            if call.num_kv_heads % heads == 0 and warps % heads == 0:
                for splits in range(1, MAX_SPLITS + 1):
                    yield Config(splits, heads, warps)


def heuristic(call: Call) -> Config:
    """A configuration by rule; the measurements are of an H200, 132 multiprocessors.

    Two blocks of 8 warps fit a multiprocessor. Placement decides more than anything: a
    cluster needs room in one group of some 16 multiprocessors, so larger clusters leave
    more of them idle (8 x 32768: 246 us with 2 splits, 258 with 3, 277 with 8), and 16
    splits are slower than 8 everywhere (1 x 32768: 50 us against 41).
    """
    pairs = max(1, call.rows * call.num_kv_heads)
    if pairs >= 256:
        # Pairs alone fill the machine. Several heads in a block read whole slots:
        # 256 x 1024 takes 246.9 us with 8, 250.0 with 2; 64 x 1024 the most with 8.
        return Config(1, _heads(call.num_kv_heads, at_most=pairs // 256), 8)
    if call.max_tokens >= LONG_TOKENS:
        # Streams: one block a multiprocessor, 16 warps to hide arithmetic (1 x 32768:
        # 40.5 us, 46.6 with 8 warps).
        return Config(min(-(-128 // pairs), MAX_SPLITS), 1, 16)
    wanted = -(-192 // pairs)  # 8 x 1024: 14.3 us with 3 splits, 15.2 with 2
    useful = max(1, -(-call.max_tokens // (8 * TILE_TOKENS)))
    return Config(min(wanted, useful, MAX_SPLITS), 1, 8)


def _heads(num_kv_heads: int, *, at_most: int) -> int:
    """The most heads of a block that divide all heads."""
    return max(h for h in HEADS_PER_BLOCK if h <= at_most and num_kv_heads % h == 0)
