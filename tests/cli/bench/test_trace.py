"""Traces: the part of Azure's that is shipped, and files that are none."""

import pathlib

import pytest

from fdjax import ConfigError
from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.trace import read_trace

SHIPPED = pathlib.Path(__file__).parents[3] / "benchmarks/data/azure_conv_2023_500.csv"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_the_shipped_trace():
    arrivals = read_trace(SHIPPED)
    assert len(arrivals) == 500
    assert arrivals[0] == Arrival(0.0, 374, 44)
    sizes = [(one.input_tokens, one.output_tokens) for one in arrivals]
    assert (sizes[1], sizes[-1]) == ((396, 109), (1033, 420))
    times = arrivals[1].at_s, arrivals[-1].at_s
    assert times == pytest.approx((4.314579, 129.012474))
    assert read_trace(SHIPPED, count=3) == arrivals[:3]


def test_other_columns_and_forms_of_time(tmp_path: pathlib.Path):
    text = (
        "id,GeneratedTokens,TIMESTAMP,ContextTokens\n"
        "a,1,2024-01-01T23:59:59.5Z,7\n"
        "b,2,2024-01-02 00:00:01+00:00,8\n"
    )
    wanted = [Arrival(0.0, 7, 1), Arrival(1.5, 8, 2)]
    assert read_trace(write(tmp_path, text)) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "has no column GeneratedTokens"),
        (HEADER, "has 0 rows, but 1 are needed"),
        (f"{HEADER}yesterday,1,1\n", "line 2: TIMESTAMP is 'yesterday'"),
        (f"{HEADER}2024-01-01,x,1\n", "line 2: ContextTokens is 'x'"),
        (f"{HEADER}2024-01-01,1,0\n", "line 2: GeneratedTokens is '0'"),
        (f"{HEADER}2024-01-01,1\n", "line 2: GeneratedTokens is ''"),
        (
            f"{HEADER}2024-01-02,1,1\n2024-01-01,1,1\n",
            "line 3: TIMESTAMP 2024-01-01 00:00:00+00:00 is earlier than 2024-01-02",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: pathlib.Path, text: str, message: str):
    with pytest.raises(ConfigError) as error:
        read_trace(write(tmp_path, text))
    assert message in str(error.value)


def test_a_trace_that_is_too_short(tmp_path: pathlib.Path):
    path = write(tmp_path, f"{HEADER}2024-01-02,1,1\n")
    with pytest.raises(ConfigError, match="has 1 rows, but 2 are needed"):
        read_trace(path, count=2)
