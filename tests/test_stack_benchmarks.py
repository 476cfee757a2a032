"""Times of other stacks' attention: the device's own, and the table that shows them."""

from typing import Any

import jax.numpy as jnp
import pytest

from benchmarks import stack_tables, timeline
from benchmarks.timeline import Kernel, busy_us, device_runs, span_us
from fdjax.notation import Array

CLOCK: list[dict[str, Any]] = [
    {"peer": "fdjax", "batch": 1, "context": 1024, "us": 26.7},
    {"peer": "fdjax, rpa v3", "batch": 1, "context": 1024, "us": 27.1},
    {"peer": "cudnn", "batch": 1, "context": 1024, "error": "none here"},
]


def test_clock_times_alone():
    assert stack_tables.peers(CLOCK).splitlines() == [
        "| batch x context | fdjax, µs | fdjax, rpa v3, µs | cudnn, µs |",
        "|---|---|---|---|",
        "| 1 x 1,024 | 26.7 | 27.1 | not run |",
    ]


def test_device_times_of_both_caches():
    rows = [
        {**row, "device_us": us + 4, "longest_us": us, "commit": "1234567"}
        for row, us in zip(CLOCK[:2], (10, 10.1), strict=True)
    ]
    line = stack_tables.both_caches(rows).splitlines()[-1]
    assert line == "| 1 x 1,024 | 14.0 | 10.0 | 14.1 | 10.1 | 1.010 | 1234567 |"


def test_spans_are_from_the_first_kernel_of_a_run_to_its_last(
    monkeypatch: pytest.MonkeyPatch,
):
    kernels = [Kernel(0, 2e3, "a"), Kernel(3e3, 5e3, "b")]
    kernels += [Kernel(9e3, 10e3, "a"), Kernel(10e3, 13e3, "b")]

    def traced(folder: str) -> list[Kernel]:
        assert folder
        return kernels

    monkeypatch.setattr(timeline, "kernels_of", traced)

    def run() -> Array:
        return jnp.ones(())

    assert [*map(span_us, device_runs(run, launches=2, at_least=2))] == [5.0, 4.0]
    with pytest.raises(RuntimeError, match="4 kernels in 3 runs"):
        device_runs(run, launches=3)
    with pytest.raises(RuntimeError, match="4 kernels in 4 runs of 2 or more"):
        device_runs(run, launches=4, at_least=2)


def test_what_the_device_waits_for_is_no_kernels_time():
    apart = [Kernel(1e3, 3e3, "a"), Kernel(7e3, 8e3, "b")]
    assert busy_us(apart) == [2.0, 1.0]
    overlapping = [Kernel(1e3, 3e3, "a"), Kernel(2e3, 8e3, "b")]
    assert busy_us(overlapping) == [2.0, 5.0]
