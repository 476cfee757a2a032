"""From where on a gate is inside its GEMM: found from times that are made up."""

import pytest

from fdjax.kernels.layer_program import config, table
from fdjax.kernels.layer_program.table import NEVER, ChainRows
from fdjax.kernels.matmul.params import LibraryConfig, PersistentConfig
from fdjax.kernels.tuning.chain_gate import Gated, compared, with_gate

GEMM = Gated(28672, "silu", bias=False)
MS = (128, 512, 768, 896, 960, 1024)
ROWS = ChainRows(candidates={(256, 64, 64): 1}, persistent_from=500)


class Steps:
    """Inside is faster from an efficiency on, in thousandths."""

    def __init__(self, start: int) -> None:
        self._start = start

    def microseconds(self, rows: ChainRows, m: int) -> float:
        assert rows.candidates == ROWS.candidates and m > rows.gemm_up_to
        with table.PART.using(rows):
            chosen = config.choose(m, GEMM.n, 4096, gate=GEMM.activation)
        inside = rows.persistent_from == 0
        assert isinstance(chosen, PersistentConfig if inside else LibraryConfig)
        return 90 if inside == (GEMM.filled(m) >= self._start) else 100


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize("start", [950, 900])
def test_the_efficiency_is_the_least_from_which_inside_is_faster(start: int):
    called: list[None] = []
    found = compared(Steps(start), MS, GEMM, ROWS, on_point=lambda: called.append(None))
    assert len(called) == len(MS) == len(found) + 1, "128 rows are another kernel's"
    filled = sorted(one.at for one in found if one.at >= start)
    rows = with_gate(ROWS, found)
    assert rows.persistent_from == filled[0]
    assert with_gate(rows, found) == rows
    never = with_gate(ROWS, compared(Steps(NEVER), MS, GEMM, ROWS))
    assert never.persistent_from == NEVER
    assert with_gate(ROWS, []) == ROWS
