"""`benchmarks.serving_online` runs on a CPU, with a trace of a few requests."""

import json
import pathlib

import pytest

from benchmarks import serving_online
from benchmarks.serving_online import Load, main
from fdjax.cli.bench.arrivals import Arrival

LENGTHS = [(20, 4), (2200, 9), (5, 1), (30, 6), (12, 3)]


def arrivals() -> list[Arrival]:
    return [Arrival(float(i), *sizes) for i, sizes in enumerate(LENGTHS)]


def test_loads_by_their_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving_online, "AT_ONCE", 4)
    short = Load.of("conv-4-short", arrivals(), seconds=60.0)
    assert [one.input_tokens for one in short.arrivals] == [20, 5, 30, 12]
    assert {one.at_s for one in short.arrivals} == {0.0}
    (long,) = Load.of("conv-4-long", arrivals(), seconds=60.0).arrivals
    assert long.input_tokens == 2200
    timed = Load.of("conv-2", arrivals(), seconds=2.0)
    assert [one.output_tokens for one in timed.arrivals] == [4, 9, 1, 6]
    assert timed.arrivals[0].at_s == 0.0 < timed.arrivals[1].at_s
    with pytest.raises(SystemExit, match="'code-x' is not like conv-12"):
        Load.of("code-x", arrivals(), seconds=1.0)


def test_a_row_for_each_load(tmp_path: pathlib.Path):
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    lines = [f"2023-11-16 18:15:{i:02},{a},{b}" for i, (a, b) in enumerate(LENGTHS)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    main(
        [
            *(str(trace), "--out", str(out), "--model", "tales-5m", "--skip", "0"),
            *("--max-model-len", "64", "--max-num-seqs", "2", "--seconds", "0.05"),
            *("--max-num-batched-tokens", "32", "--max-itl-ms", "1000"),
            *("--loads", "conv-512,conv-80"),
        ]
    )
    rows = json.loads(out.read_text())
    assert [row["load"] for row in rows] == ["conv-512", "conv-80"]
    for row in rows:
        assert (row["engine"], row["mixed_steps"]) == ("fdjax", True)
        assert row["requests"] == 4, "one does not fit the model's length"
        assert row["output_tokens"] == 14
        for name in ("ttft_ms", "tpot_ms", "gap_ms"):
            low, middle, high = row[name]
            assert 0 <= low <= middle <= high
