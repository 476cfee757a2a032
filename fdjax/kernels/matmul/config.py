"""Which implementation of `matmul` serves a product, and how it is cut up.

The heuristic dataflow of FlashDecoding++ (section 5): for the `[N, K]` of a weight, A
(`gemv`) serves M up to an inflection point M1, B (`flat`) up to M2, and C (XLA's dot,
the reference) above. The table of the device says where those lie and how B cuts the
product up; without one, the heuristic below does. M is static, so the choice costs
nothing at run time.
"""

import functools
import json
import pathlib
from dataclasses import dataclass
from typing import Any

from fdjax import device

MAX_GEMV_M = 4
MAX_FLAT_M = 64

# Of an H200; of an H100 too.
MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024
MAX_STAGES = 16

TABLES = pathlib.Path(__file__).parent / "tuned"


@dataclass(frozen=True)
class FlatConfig:
    """How B cuts a product up (`FlatConfig` in params.h).

    Attributes:
        tiles: tiles of weight rows in a block.
        boxes: 64 columns each, of a stage.
        tile_rows: weight rows of a tile.
        splits: blocks of a cluster that share K.
        stages: of the ring in shared memory.
    """

    tiles: int
    boxes: int
    tile_rows: int
    splits: int
    stages: int

    def shared_bytes(self, m: int) -> int:
        """Shared memory of a block (`Shape::bytes` in flat.cuh)."""
        padded = padded_m(m)
        stage = self.boxes * 128 * (self.tiles * self.tile_rows + padded)
        ring = self.stages * stage + (64 - self.tile_rows) * 128
        sums = self.boxes * padded * (self.tiles * 64 + 4) * 4
        return max(ring, sums) + 1024


@dataclass(frozen=True)
class Choice:
    """The inflection points of one `[N, K]`.

    Attributes:
        gemv_up_to: M1: A serves M up to here; 0: never.
        flat_up_to: M2: B serves M from M1 + 1 up to here.
        flat: B's configuration by padded M.
    """

    gemv_up_to: int
    flat_up_to: int
    flat: dict[int, FlatConfig]


def padded_m(m: int) -> int:
    """M as B pads it: to 8, 16, 32 or 64."""
    return next(size for size in (8, 16, 32, 64) if m <= size)


def choose(m: int, n: int, k: int) -> tuple[str, ...]:
    """The implementations to try for a product, best first.

    The reference stands for C; what is not named is not tried.
    """
    choice = _table().get((n, k))
    gemv_up_to = _gemv_up_to(n, k) if choice is None else choice.gemv_up_to
    flat_up_to = MAX_FLAT_M if choice is None else choice.flat_up_to
    if m <= gemv_up_to:
        return ("gemv", "flat")
    if m <= flat_up_to:
        return ("flat", "gemv")
    return ("reference",)


def flat_config(m: int, n: int, k: int, *, gated: bool) -> FlatConfig:
    """B's configuration: the table's, else the heuristic's.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        gated: whether the two halves of the product become one.
    """
    choice = _table().get((n, k))
    if choice is not None and padded_m(m) in choice.flat:
        config = choice.flat[padded_m(m)]
    else:
        config = heuristic(m, n, k)
    if gated and config.tiles == 1:  # one tile of gate rows, one of up rows
        return _with_stages(m, 2, config.boxes, config.tile_rows, config.splits, 2)
    return config


def heuristic(m: int, n: int, k: int) -> FlatConfig:
    """B's configuration where nothing was measured.

    The thresholds are those that fit Llama-3-8B's five products on an H200 best; see
    docs/kernels/matmul.md.
    """
    del k
    boxes = 2 if m <= 16 else 1  # more tokens leave less room for the ring
    if n >= 4 * 128 * MULTIPROCESSORS:
        # Many waves of blocks: three small ones a multiprocessor, so that the start and
        # the end of one hide behind the others. With M = 64, x takes much of a stage
        # unless more rows share it.
        if m <= 32:
            return _with_stages(m, 1, boxes, 64, 1, 3)
        return _with_stages(m, 2, 1, 64, 1, 2)
    if n > 64 * MULTIPROCESSORS:
        # One wave of two blocks on every multiprocessor: 112 rows instead of 128 fill
        # it better where N = 28672.
        return _with_stages(m, 2, boxes, 56, 1, 2)
    if n > 32 * MULTIPROCESSORS:
        return _with_stages(m, 1, boxes, 48 if m <= 16 else 56, 1, 1)
    # Fewer tiles than multiprocessors: two blocks share the K of each.
    return _with_stages(m, 1, boxes, 64, 2, 1)


def candidates(m: int) -> tuple[FlatConfig, ...]:
    """What a search for B's configuration tries."""
    shapes = (
        # tiles, tile_rows, splits, blocks on a multiprocessor
        (1, 48, 1, 1),
        (1, 48, 1, 2),
        (1, 56, 1, 1),
        (1, 56, 1, 2),
        (1, 64, 1, 1),
        (1, 64, 1, 2),
        (1, 64, 1, 3),
        (1, 64, 2, 1),
        (1, 64, 2, 2),
        (2, 56, 1, 2),
        (2, 64, 1, 2),
    )
    return tuple(
        _with_stages(m, tiles, boxes, tile_rows, splits, per_multiprocessor)
        for boxes in (1, 2)
        for tiles, tile_rows, splits, per_multiprocessor in shapes
    )


def _with_stages(
    m: int, tiles: int, boxes: int, tile_rows: int, splits: int, per_multiprocessor: int
) -> FlatConfig:
    """As many stages as fit when so many blocks share a multiprocessor."""
    room = SHARED_BYTES // per_multiprocessor - 1024
    stages = 1
    for more in range(2, MAX_STAGES + 1):
        if FlatConfig(tiles, boxes, tile_rows, splits, more).shared_bytes(m) <= room:
            stages = more
    return FlatConfig(tiles, boxes, tile_rows, splits, stages)


def _gemv_up_to(n: int, k: int) -> int:
    """M1 where nothing was measured.

    A reads a small weight faster than B, whose blocks take longer to start and to end
    (1 us of 10); from M = 3 on, and at M = 2 of a large weight, its arithmetic shows.
    """
    return 2 if n * k < 100_000_000 else 1


def slug(kind: str) -> str:
    """A device's name as that of its table."""
    return kind.lower().replace(" ", "-")


def _table() -> dict[tuple[int, int], Choice]:
    return load(TABLES / f"{slug(device.kind())}.json")


@functools.cache
def load(path: pathlib.Path) -> dict[tuple[int, int], Choice]:
    """A device's table by `[N, K]`; empty where there is none."""
    if not path.exists():
        return {}
    rows: list[dict[str, Any]] = json.loads(path.read_text())["shapes"]
    return {(row["n"], row["k"]): _choice(row) for row in rows}


def _choice(row: dict[str, Any]) -> Choice:
    flat = {int(m): FlatConfig(**config) for m, config in row["flat"].items()}
    return Choice(row["gemv_up_to"], row["flat_up_to"], flat)
