"""Which kernel computes a GEMM, and its launch config.

`ffi/matmul/launch_matmul.h` reads what `config_numbers` writes.
"""

import dataclasses
from dataclasses import dataclass

from fdjax.kernels import ffi
from fdjax.kernels.chip import SHARED_BYTES

NAME = "matmul"
# N of a weight and K are multiples of the first; N of a gated one of the second.
UNIT, GATED_UNIT = ffi.limit(NAME, "unit"), ffi.limit(NAME, "gated_unit")
MAX_GEMV_M = ffi.limit(NAME, "max_gemv_tokens")
MAX_FLAT_M = ffi.limit(NAME, "max_flat_tokens")
MAX_GEMM_M = ffi.limit(NAME, "max_gemm_tokens")
PADDED_M = (8, 16, 32, 64)
PERSISTENT_ROWS = ffi.limits(NAME, "persistent_rows")
MAX_OTHER_GATE_ROWS = ffi.limit(NAME, "max_other_gate_rows")
PERSISTENT_TOKENS = ffi.limit(NAME, "persistent_tokens")
PERSISTENT_PAIR = ffi.limit(NAME, "persistent_pair")
TILE_COLUMNS = 64  # of K, in a stage
MAX_STAGES = ffi.limit(NAME, "max_stages")

TILE_ROW_MULTIPLE = ffi.limit(NAME, "tile_row_multiple")
MAX_TILE_ROWS = ffi.limit(NAME, "max_tile_rows")

_TAKEN = {
    "tiles": range(1, ffi.limit(NAME, "max_tiles") + 1),
    "boxes": range(1, ffi.limit(NAME, "max_boxes") + 1),
    "tile_rows": range(TILE_ROW_MULTIPLE, MAX_TILE_ROWS + 1, TILE_ROW_MULTIPLE),
    "splits": range(1, ffi.limit(NAME, "max_splits") + 1),
    "stages": range(1, MAX_STAGES + 1),
    "narrow": range(1 << 24),  # how many a weight has rows for, its table says
}


@dataclass(frozen=True)
class FlatConfig:
    """The launch config of `flat` (`FlatConfig` in params.h).

    Attributes:
        tiles: tiles of weight rows in a block.
        boxes: TMA boxes that a stage holds of each tile, each 64 columns of K wide.
        tile_rows: weight rows of a tile.
        splits: blocks of a cluster that share K (split-K).
        stages: of the ring in shared memory: steps along K that are loaded ahead.
        narrow: the last `narrow` blocks have tiles 8 rows shorter, so that any number
            of rows is shared out evenly.
    """

    tiles: int
    boxes: int
    tile_rows: int
    splits: int
    stages: int
    narrow: int = 0

    def shared_bytes(self, m: int) -> int:
        """Shared memory of a block (`Shape::bytes` in flat_ring.cuh)."""
        padded = padded_m(m)
        row_bytes = 2 * TILE_COLUMNS
        stage = self.boxes * row_bytes * (self.tiles * self.tile_rows + padded)
        ring = self.stages * stage + (64 - self.tile_rows) * row_bytes
        sums = self.boxes * padded * (self.tiles * 64 + 4) * 4
        return max(ring, sums) + 1024

    def problem(self, m: int) -> str | None:
        """Why the kernel cannot take this launch config for M rows, or `None`."""
        for field in dataclasses.fields(self):
            value, taken = getattr(self, field.name), _TAKEN[field.name]
            if value not in taken:
                by = f" in steps of {taken.step}" if taken.step > 1 else ""
                return (
                    f"{field.name} is {value}; it takes {taken[0]} to {taken[-1]}{by}"
                )
        if self.narrow and self.tile_rows == TILE_ROW_MULTIPLE:
            return f"tile_rows is {self.tile_rows}, which leaves a narrow tile none"
        if self.shared_bytes(m) > SHARED_BYTES:
            return (
                f"stages is {self.stages}, which takes {self.shared_bytes(m)} bytes of "
                f"shared memory; a block has {SHARED_BYTES}"
            )
        return None


@dataclass(frozen=True)
class GemvConfig:
    """`gemv`, which has nothing to choose."""


@dataclass(frozen=True)
class GemmConfig:
    """The launch config of `gemm` (`GemmConfig` in params.h).

    Attributes:
        rows: weight rows of a block; of a gated GEMM half of them are up rows.
        split: blocks of a cluster that share K (split-K).
        stages: of the ring in shared memory; as many as fit.
    """

    rows: int
    split: int
    stages: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        most = (SHARED_BYTES - 1024) // self.stage_bytes
        object.__setattr__(self, "stages", min(MAX_STAGES, most))

    @property
    def stage_bytes(self) -> int:
        """Of the ring."""
        return (MAX_GEMM_M + self.rows) * TILE_COLUMNS * 2


@dataclass(frozen=True)
class LibraryConfig:
    """cuBLASLt.

    Attributes:
        candidate: of those that it proposes, the best by its estimate first.
    """

    candidate: int


@dataclass(frozen=True)
class PersistentConfig:
    """The launch config of `persistent` (`PersistentConfig` in params.h).

    Attributes:
        rows: weight rows of a tile; of a gated GEMM half of them are up rows.
        band: token tiles of clusters that come before those of the next weight columns.
        shares_weights: both blocks of a pair read one weight tile; else one x tile.
    """

    rows: int
    band: int
    shares_weights: bool


type MatmulConfig = (
    GemvConfig | FlatConfig | GemmConfig | LibraryConfig | PersistentConfig
)
"""Which kernel computes a GEMM, with its launch config."""

# In the order of the variant MatmulConfig in launch_matmul.h.
KERNELS: tuple[type[MatmulConfig], ...] = (
    *(GemvConfig, FlatConfig),
    *(GemmConfig, LibraryConfig, PersistentConfig),
)


_NAMES = ("gemv", "flat", "gemm", "library", "persistent")


def kernel_name(config: MatmulConfig) -> str:
    """The implementation of `matmul` that has this launch config."""
    return _NAMES[KERNELS.index(type(config))]


def config_numbers(config: MatmulConfig) -> tuple[int, ...]:
    """What handlers read: which kernel, and the fields of its launch config."""
    numbers = (getattr(config, field.name) for field in dataclasses.fields(config))
    return KERNELS.index(type(config)), *numbers


def padded_m(m: int) -> int:
    """M as `flat` pads it: to 8, 16, 32 or 64."""
    return next(size for size in PADDED_M if m <= size)
