"""Decode steps with what they need in the KV array's end, or in XLA's own buffers.

Both ways in turns, over one array: machines differ by more than the two do, clocks
drift, and there is no room for two arrays of many rows.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.ablation import filled
from benchmarks.cases import Case
from benchmarks.decode import Bench, layout_of, timed
from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.lent_pages import LentPages
from fdjax.engine.programs import Programs
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder

type Row = dict[str, Any]


def step_times(
    model: Decoder,
    programs: Programs,
    case: Case,
    *,
    lents: Collection[bool],
    repeats: int,
) -> dict[bool, Row]:
    """A decode step of the case, by whether the array is lent, and what it comes to.

    Args:
        model: the decoder, loaded.
        programs: its compiled programs.
        case: what to measure.
        lents: whether the array is lent: one of the ways, or both in turns.
        repeats: of each way.
    """
    layout = layout_with_room(model, case, ("decode", case.batch), lent=True in lents)
    bench = filled(Bench(model, programs, case, layout))
    ways = sorted(lents, reverse=True)
    times: dict[bool, list[float]] = {lent: [] for lent in ways}
    for lent in ways:  # compiles
        _decode(bench, lent=lent)
    for turn in range(repeats):  # whoever is first is so in every other turn alone
        for lent in ways if turn % 2 == 0 else reversed(ways):
            times[lent].append(_decode(bench, lent=lent) / case.steps)
    return {lent: _row(case, found, times.get(False)) for lent, found in times.items()}


def _decode(bench: Bench, *, lent: bool) -> float:
    """Seconds of all steps, in an array that is lent, or that is not."""
    kv = replace(bench.progress.kv, lent=lent)
    bench.progress = replace(bench.progress, kv=kv)
    bench.rewind()
    (seconds,) = timed(bench.decode, repeats=1)
    return seconds


def _row(case: Case, times: Sequence[float], apart: Sequence[float] | None) -> Row:
    """Medians, and the median of a way's times over those apart in the same turns."""
    median = statistics.median(times)
    row = {
        "ms_per_step": round(median * 1e3, 4),
        "tokens_per_s": round(case.batch / median, 1),
        "spread": round((max(times) - min(times)) / median, 4),
        "repeats": len(times),
    }
    if apart is None or apart is times:
        return row
    ratios = np.array(times) / np.array(apart)
    quarter, ratio, most = np.quantile(ratios, (0.25, 0.5, 0.75))
    return {
        **row,
        "of_apart": round(float(ratio), 4),
        "of_apart_quartiles": [round(float(one), 4) for one in (quarter, most)],
    }


def layout_with_room(
    model: Decoder, case: Case, call: tuple[BorrowingCall, int], *, lent: bool
) -> KVLayout:
    """What the rows fill; and if it is lent, what the call needs, at its end."""
    rows = layout_of(model, case)
    if not lent:
        return rows
    layout = replace(rows, lent=True)
    width = rows.num_pages // case.batch
    lending = borrowing(model.config, layout, rows=case.batch, width=width)
    return layout.with_pages(rows.num_pages + lending.pages(*call))


def borrowing(
    config: ModelConfig, layout: KVLayout, *, rows: int, width: int
) -> LentPages:
    """What calls borrow, by page tables of one width."""
    return LentPages(config, layout, num_rows=rows, widths=(width,), sizes={})
