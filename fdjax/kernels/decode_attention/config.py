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
    """A configuration by rule; the measurements are of an H200, 132 multiprocessors."""
    pairs = call.rows * call.num_kv_heads
    if pairs >= 256:
        # Each row alone fills the machine.
        heads = next(h for h in (8, 4, 2, 1) if call.num_kv_heads % h == 0)
        return Config(1, heads if pairs >= 1024 else min(heads, 2), 8)
    wanted = -(-_blocks(call.max_tokens) // pairs)
    useful = max(1, -(-call.max_tokens // (TILE_TOKENS * 8)))
    return Config(min(wanted, useful, MAX_SPLITS), 1, 8)


def _blocks(max_tokens: int) -> int:
    """Blocks worth having: fewer where each one streams for long."""
    return 192 if max_tokens < LONG_TOKENS else 128
