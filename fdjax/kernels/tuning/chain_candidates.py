"""Which of cuBLASLt's candidates serves a GEMM of a chain, by times of steps.

What its heuristic proposes first is not always fastest: of Llama-3-8B's gate and up
GEMM it takes 1.8 times as long as the second at 448 rows (an H200).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.tuning.chain import Times

NUM_CANDIDATES = 4
"""Those that are tried, the first by the library's estimate among them."""
WORTH = 0.99
"""Of a step's time: what is less of a gain is noise."""

type Candidates = Mapping[tuple[int, int, int], int]
"""By (M, N, K), which candidate serves where it is not the first."""


def faster(
    times: Times,
    ms: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    rows: ChainRows,
    *,
    on_point: Callable[[], None] = lambda: None,
) -> Candidates:
    """The candidates by which steps are faster than by the first ones.

    One GEMM after the other: each keeps what is best beside those found before it. What
    is found for a step is timed once more, in turns with the first candidates.

    Args:
        times: measures.
        ms: rows of x; those that other kernels serve are left out.
        shapes: `[N, K]` of the layers' weights.
        rows: how many rows each kernel serves.
        on_point: called after every M.
    """
    found: dict[tuple[int, int, int], int] = {}
    for m in ms:
        if m > rows.gemm_up_to:
            found |= _of_step(times, m, shapes, rows)
        on_point()
    return found


def merged(
    before: Candidates,
    found: Candidates,
    ms: Sequence[int],
    shapes: Sequence[tuple[int, int]],
) -> dict[tuple[int, int, int], int]:
    """Those of before, but for what was measured, and those that were found."""
    measured = {(m, *shape) for m in ms for shape in shapes}
    kept = {gemm: one for gemm, one in before.items() if gemm not in measured}
    return dict(sorted((kept | dict(found)).items()))


def _of_step(
    times: Times, m: int, shapes: Sequence[tuple[int, int]], rows: ChainRows
) -> dict[tuple[int, int, int], int]:
    def microseconds(candidates: dict[tuple[int, int, int], int]) -> float:
        return times.microseconds(replace(rows, candidates=candidates), m)

    best: dict[tuple[int, int, int], int] = {}
    least = microseconds(best)
    for shape in shapes:
        others = [best | {(m, *shape): i} for i in range(1, NUM_CANDIDATES)]
        us, fastest = min(
            ((microseconds(one), one) for one in others), key=lambda timed: timed[0]
        )
        if us < WORTH * least:
            least, best = us, fastest
    if not best:
        return {}
    first, again = microseconds({}), microseconds(best)
    return best if again < WORTH * first else {}
