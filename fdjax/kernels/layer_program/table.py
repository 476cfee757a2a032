"""The part of `layer_program` in tables of measurements: who multiplies how many rows.

Kernels of a chain start beside the end of those before them, so what is fastest there
is not what is fastest alone, and is measured in steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdjax.kernels.chip import SHARED_BYTES
from fdjax.kernels.matmul.params import MAX_FLAT_M, MAX_GEMM_M, MAX_GEMV_M
from fdjax.kernels.tuning.files import integer
from fdjax.kernels.tuning.parts import Part


@dataclass(frozen=True)
class ChainRows:
    """The most rows of x that each kernel serves; cuBLASLt serves more.

    Attributes:
        gemv_up_to: of `gemv`; 0: none. The default is a measurement of an H200.
        flat_up_to: of `flat`.
        gemm_up_to: of `gemm`.
        candidates: by (M, N, K), which of cuBLASLt's candidates serves where a step is
            faster by another than its first.
        persistent_from: thousandths of the SMs' time that tiles of `persistent` must
            fill for it to serve a GEMM with a gate, which it has inside; cuBLASLt
            serves others. At the power limit of an H200 the GEMMs of a layer of
            Llama-3-8B take up to 4 % less time so; those without a gate as long by
            either (docs/kernels/matmul.md).
        beside_rows: up to so many rows a block of the QKV GEMM leaves a block of
            attention room on its SM, which starts beside it and fetches pages.
        beside_bytes: shared memory that it may take then. On an H200 layers of
            Llama-3-8B take 4.05 ms at 8 x 1,024 with a ring of 9 stages, 4.11 with 15;
            at 16 x 1,024 4.35 with 8, 4.39 with 13; at 64 all are level.
    """

    gemv_up_to: int = 1
    flat_up_to: int = MAX_FLAT_M
    gemm_up_to: int = MAX_GEMM_M
    candidates: dict[tuple[int, int, int], int] = field(
        default_factory=dict[tuple[int, int, int], int]
    )
    persistent_from: int = 950
    beside_rows: int = 16
    beside_bytes: int = 132 * 1024


NEVER = 1001
"""More than all of the SMs' time: `persistent` serves nothing."""
_NUMBERS = {
    "persistent_from": NEVER,
    "beside_rows": MAX_FLAT_M,
    "beside_bytes": SHARED_BYTES,
}
"""Fields that a file may leave out, and the most that each may be."""
_FIELDS = frozenset({"gemv_up_to", "flat_up_to", "gemm_up_to", "library", *_NUMBERS})


def _rows(part: Mapping[str, Any]) -> ChainRows:
    gemv = integer(part, "gemv_up_to", 0, MAX_GEMV_M)
    flat = integer(part, "flat_up_to", gemv, MAX_FLAT_M)
    gemm = integer(part, "gemm_up_to", flat, MAX_GEMM_M)
    candidates: dict[tuple[int, int, int], int] = {}
    for one in part["library"]:
        m, n, k = (integer(one, name, 1) for name in "mnk")
        candidates[m, n, k] = integer(one, "candidate", 0)
    numbers = {
        name: integer(part, name, 0, most)
        for name, most in _NUMBERS.items()
        if name in part
    }
    return ChainRows(gemv, flat, gemm, candidates, **numbers)


PART = Part("layer_program", _FIELDS, _rows, ChainRows())
