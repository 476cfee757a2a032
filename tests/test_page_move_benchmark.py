"""The program that times moves of pages, at a tiny shape."""

import math

import numpy as np
import pytest

from benchmarks import page_move


def test_no_page_is_in_two_moves():
    ids = page_move.distinct_moves(3, 50)
    assert len(ids) == 8
    used = np.concatenate([np.concatenate(pair) for pair in ids])
    assert len(set(used.tolist())) == used.size == 8 * 2 * 3
    with pytest.raises(ValueError, match="26 moves need 52 pages, and there are 50"):
        page_move.distinct_moves(26, 50)


def test_bytes_are_those_read_and_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_move, "RUN_US", 10)
    shape = (2, 2, 16, 8, 128)
    row = page_move.measure(3, pages=13, page=shape)
    assert row["moves"] == 3 and row["page_bytes"] == 2 * math.prod(shape)
    moved = row["reference_us"] * row["reference_gb_s"] * 1e3
    rounding = 501 * row["reference_us"]  # half a GB/s
    assert abs(moved - 2 * 3 * row["page_bytes"]) <= rounding
