"""From which efficiency on a gate is inside its GEMM, by times of steps.

`persistent` has the gate inside, and no columns of gate and up are written. Where its
tiles leave SMs idle cuBLASLt, with a kernel for the gate behind it, is faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fdjax.kernels.layer_program.table import NEVER, ChainRows
from fdjax.kernels.matmul import persistent
from fdjax.kernels.tuning.chain import Times
from fdjax.kernels.tuning.thresholds import Comparison, chosen


@dataclass(frozen=True)
class Gated:
    """A GEMM with a gate.

    Attributes:
        n: gate and up rows of its weight.
        activation: of the gate.
        bias: whether one is added.
    """

    n: int
    activation: str
    bias: bool

    def filled(self, m: int) -> int:
        """Thousandths of the SMs' time that tiles of M rows fill."""
        tiles = persistent.choose(m, self.n, activation=self.activation, bias=self.bias)
        return int(1000 * persistent.efficiency(tiles, m, self.n, gated=True))


def compared(
    times: Times,
    ms: Sequence[int],
    gemm: Gated,
    rows: ChainRows,
    *,
    on_point: Callable[[], None] = lambda: None,
) -> list[Comparison]:
    """Times steps with the gate behind its GEMM, and inside.

    Args:
        times: measures.
        ms: rows of x; those that other kernels serve are left out.
        gemm: of each layer.
        rows: whose other choices stay.
        on_point: called after every M.
    """
    found: list[Comparison] = []
    for m in ms:
        if m > rows.gemm_up_to:
            behind, inside = (
                times.microseconds(replace(rows, persistent_from=start), m)
                for start in (NEVER, 0)
            )
            found.append(Comparison(gemm.filled(m), behind, inside))
        on_point()
    return found


def with_gate(rows: ChainRows, found: Sequence[Comparison]) -> ChainRows:
    """The rows, with the efficiency that loses least time; see `thresholds.chosen`."""
    if not found:
        return rows
    start = min(chosen(found, rows.persistent_from), NEVER)
    return replace(rows, persistent_from=start)
