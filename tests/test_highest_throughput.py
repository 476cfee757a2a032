"""The highest throughput over batches, of the shipped model."""

import json
import pathlib

from benchmarks.highest_throughput import highest, main


def test_every_batch_is_measured_and_the_best_drawn(tmp_path: pathlib.Path):
    out, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    sizes = "--models tales-5m --inputs 5,9 --batches 1,3 --output 4 --repeats 1"
    options = f"{sizes} --memory-fraction 0.02 --out {out} --plot {plot}"
    main(options.split())
    rows = json.loads(out.read_text())
    assert [(row["input"], row["batch"]) for row in rows] == [
        (5, 1),
        (5, 3),
        (9, 1),
        (9, 3),
    ]
    assert all(row["tokens_per_s"] > 0 and row["put_back"] == 0 for row in rows)
    assert plot.read_text().count("tokens/s at") == 2


def test_the_highest_of_each_engine_model_and_length():
    rows = [
        {"engine": engine, "model": "m", "input": 8, "batch": b, "tokens_per_s": rate}
        for engine, b, rate in [
            ("a", 1, 5.0),
            ("a", 4, 9.0),
            ("a", 8, 7.0),
            ("b", 1, 2),
        ]
    ]
    assert [(row["engine"], row["batch"]) for row in highest(rows)] == [
        ("a", 4),
        ("b", 1),
    ]
