"""cuBLASLt's candidates in a chain: found from times that are made up."""

from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.tuning.chain_candidates import NUM_CANDIDATES, faster, merged

QKV, DOWN = (96, 64), (64, 224)
SHAPES = (QKV, DOWN)
ROWS = ChainRows(gemm_up_to=128)


class Steps:
    """A step of 100 us, less what each GEMM's candidate gains."""

    def __init__(self, gains: dict[tuple[int, int, int, int], float]) -> None:
        self._gains = gains
        self.asked: list[tuple[int, dict[tuple[int, int, int], int]]] = []

    def microseconds(self, rows: ChainRows, m: int) -> float:
        self.asked.append((m, rows.candidates))
        assert (rows.gemv_up_to, rows.gemm_up_to) == (1, 128)
        chosen = ((*gemm, one) for gemm, one in rows.candidates.items())
        return 100 - sum(self._gains.get(one, 0) for one in chosen)


def test_the_best_of_each_gemm_serves():
    gains = {(512, *QKV, 1): 2.0, (512, *QKV, 3): 5.0, (512, *DOWN, 2): 3.0}
    steps, points = Steps(gains), list[None]()
    found = faster(
        steps, [128, 256, 512], SHAPES, ROWS, on_point=lambda: points.append(None)
    )
    assert found == {(512, *QKV): 3, (512, *DOWN): 2}
    assert len(points) == 3
    # Of 128 rows nothing: another kernel serves them. Of 256 nothing is timed again.
    tried = 1 + len(SHAPES) * (NUM_CANDIDATES - 1)
    assert [m for m, _ in steps.asked] == [256] * tried + [512] * (tried + 2)


def test_a_gain_that_is_noise_is_none():
    assert faster(Steps({(512, *QKV, 1): 0.9}), [512], SHAPES, ROWS) == {}

    class Once(Steps):
        """The gain is seen once, and not when it is timed again."""

        def microseconds(self, rows: ChainRows, m: int) -> float:
            us = super().microseconds(rows, m)
            return us if self.asked.count((m, rows.candidates)) == 1 else 100

    once = Once({(512, *QKV, 1): 5.0})
    assert faster(once, [512], [QKV], ROWS) == {}


def test_what_was_not_measured_stays():
    before = {(448, *QKV): 1, (512, *QKV): 2, (512, 8, 8): 3}
    found = {(512, *DOWN): 1}
    assert merged(before, found, [512], SHAPES) == {
        (448, *QKV): 1,
        (512, 8, 8): 3,
        (512, *DOWN): 1,
    }
