"""The part of `layer_program` in tables of measurements: who multiplies how many rows.

Kernels of a chain start beside the end of those before them, so what is fastest there
is not what is fastest alone, and is measured in steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdjax.kernels.matmul.params import MAX_FLAT_M, MAX_GEMM_M, MAX_GEMV_M
from fdjax.kernels.tuning.files import integer
from fdjax.kernels.tuning.parts import Part

_FIELDS = frozenset({"gemv_up_to", "flat_up_to", "gemm_up_to", "library"})


@dataclass(frozen=True)
class ChainRows:
    """The most rows of x that each kernel serves; cuBLASLt serves more.

    Attributes:
        gemv_up_to: of `gemv`; 0: none. The default is a measurement of an H200.
        flat_up_to: of `flat`.
        gemm_up_to: of `gemm`.
        candidates: by (M, N, K), which of cuBLASLt's candidates serves where a step is
            faster by another than its first.
    """

    gemv_up_to: int = 1
    flat_up_to: int = MAX_FLAT_M
    gemm_up_to: int = MAX_GEMM_M
    candidates: dict[tuple[int, int, int], int] = field(
        default_factory=dict[tuple[int, int, int], int]
    )


def _rows(part: Mapping[str, Any]) -> ChainRows:
    gemv = integer(part, "gemv_up_to", 0, MAX_GEMV_M)
    flat = integer(part, "flat_up_to", gemv, MAX_FLAT_M)
    gemm = integer(part, "gemm_up_to", flat, MAX_GEMM_M)
    candidates: dict[tuple[int, int, int], int] = {}
    for one in part["library"]:
        m, n, k = (integer(one, name, 1) for name in "mnk")
        candidates[m, n, k] = integer(one, "candidate", 0)
    return ChainRows(gemv, flat, gemm, candidates)


PART = Part("layer_program", _FIELDS, _rows, ChainRows())
