"""Options to arrivals: traces, rates, and what contradicts itself."""

import pathlib
from typing import Any

import numpy as np
import pytest

from fdjax import ConfigError
from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.trace import read_trace
from fdjax.cli.bench.traffic import LENGTH, NUM_PROMPTS, TrafficOptions, arrivals_of

TRACE = pathlib.Path(__file__).parents[3] / "benchmarks/data/azure_conv_2023_500.csv"


def arrivals(**options: Any) -> list[Arrival]:
    return arrivals_of(TrafficOptions(**options), np.random.default_rng(0))


def test_without_options_all_come_at_once():
    assert arrivals() == [Arrival(0.0, LENGTH, LENGTH)] * NUM_PROMPTS


def test_sizes_and_a_number():
    given = arrivals(num_prompts=2, input_len=3, output_len=4)
    assert given == [Arrival(0.0, 3, 4)] * 2


def test_a_trace_as_it_is():
    assert arrivals(trace=TRACE) == read_trace(TRACE)


def test_a_trace_faster_and_shorter():
    given = arrivals(trace=TRACE, num_prompts=2, speed=2.0, length_scale=0.5)
    assert given[0] == Arrival(0.0, 187, 22)
    assert given[1].at_s == pytest.approx(4.314579 / 2)


def test_a_rate_takes_the_sizes_of_a_trace():
    given = arrivals(trace=TRACE, num_prompts=3, request_rate=100.0)
    assert [one.input_tokens for one in given] == [374, 396, 879]
    assert 0 == given[0].at_s < given[1].at_s < given[2].at_s < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 2.0}, "--speed has no meaning here: give --trace"),
        ({"length_scale": 2.0}, "--length-scale has no meaning here: give --trace"),
        ({"trace": TRACE, "input_len": 3}, "--input-len has no meaning here: the tr"),
        ({"trace": TRACE, "output_len": 3}, "--output-len has no meaning here: the t"),
        (
            {"trace": TRACE, "speed": 2.0, "request_rate": 1.0},
            "--speed has no meaning here: the times are those of --request-rate",
        ),
        ({"trace": TRACE, "num_prompts": 501}, "has 500 rows, but 501 are needed"),
    ],
)
def test_no_option_is_ignored(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        arrivals(**options)
    assert message in str(error.value)
