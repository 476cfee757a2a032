"""The part of `layer_program` in tables of measurements: who multiplies how many rows.

Kernels of a chain start beside the end of those before them, so what is fastest there
is not what is fastest alone, and is measured in steps.
"""

import functools
import pathlib
from dataclasses import dataclass, field
from typing import Any

from fdjax import device
from fdjax.kernels.matmul.params import MAX_FLAT_M, MAX_GEMM_M, MAX_GEMV_M
from fdjax.kernels.tuning.files import integer, places, read, unreadable

NAME = "layer_program"
_FIELDS = {"gemv_up_to", "flat_up_to", "gemm_up_to", "library", "measured_with"}


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


def find() -> ChainRows:
    """What serves on the device traced for; the defaults where no table has it.

    Raises:
        ConfigError: a table of the device cannot be read.
    """
    for path, _ in places(device.kind()):
        if (rows := load(path)) is not None:
            return rows
    return ChainRows()


@functools.cache
def load(path: pathlib.Path) -> ChainRows | None:
    """This part of a device's table; `None` where the file or the part is missing.

    Raises:
        ConfigError: the file cannot be read, or a field is missing or wrong.
    """
    part = read(path).get(NAME)
    if part is None:
        return None
    try:
        return _rows(part)
    except KeyError as error:
        raise unreadable(path, f"{NAME} has no {error}") from error
    except (TypeError, ValueError) as error:
        raise unreadable(path, f"{NAME}: {error}") from error


def _rows(part: Any) -> ChainRows:
    if not isinstance(part, dict):
        raise ValueError("it is no object")
    if unknown := sorted(part.keys() - _FIELDS):
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(_FIELDS))}")
    gemv = integer(part, "gemv_up_to", 0, MAX_GEMV_M)
    flat = integer(part, "flat_up_to", gemv, MAX_FLAT_M)
    gemm = integer(part, "gemm_up_to", flat, MAX_GEMM_M)
    candidates: dict[tuple[int, int, int], int] = {}
    for one in part["library"]:
        m, n, k = (integer(one, name, 1) for name in "mnk")
        candidates[m, n, k] = integer(one, "candidate", 0)
    return ChainRows(gemv, flat, gemm, candidates)
