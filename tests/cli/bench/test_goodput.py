"""Limits as they are written, and who keeps them."""

import dataclasses

import pytest

from fdjax import ConfigError
from fdjax.cli.bench.goodput import is_good, parse_limits
from fdjax.cli.bench.outcome import Outcome

# 500 ms to the first token, 1000 ms between events, 500 ms a token, 4 s in all.
DONE = Outcome(
    0, 0.0, 5, 5, sent_s=0.0, token_s=[0.5, 1.5, 2.5], end_s=4.0, output_tokens=5
)


@pytest.mark.parametrize(
    "entries",
    [
        ["ttft:500", "itl:50"],
        ["ttft:500 itl:50"],
        ["ttft:500,itl:50"],
        ["itl:5e1 ", " ttft:500"],
    ],
)
def test_limits_may_be_written_in_several_ways(entries: list[str]):
    assert parse_limits(entries) == {"ttft": 500.0, "itl": 50.0}


def test_no_limits():
    assert parse_limits([]) == {}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("speed:5", "there is no 'speed'; limit ttft, itl, tpot, e2e"),
        ("ttft", "the limit is ''"),
        ("ttft:fast", "the limit is 'fast'"),
        ("ttft:0", "the limit is '0'"),
        ("ttft:nan", "the limit is 'nan'"),
        ("ttft:inf", "the limit is 'inf'"),
        ("ttft:1 ttft:2", "limits ttft to 1 and again by 'ttft:2'"),
    ],
)
def test_what_is_no_limit(entry: str, message: str):
    with pytest.raises(ConfigError) as error:
        parse_limits([entry])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "limit_ms"),
    [("ttft", 500.0), ("itl", 1000.0), ("tpot", 500.0), ("e2e", 4000.0)],
)
def test_a_limit_may_be_reached_and_not_passed(name: str, limit_ms: float):
    assert is_good(DONE, {name: limit_ms})
    assert not is_good(DONE, {name: limit_ms - 1})
    assert not is_good(DONE, {"e2e": 9000.0, name: limit_ms - 1})


def test_a_failed_request_is_never_good():
    failed = dataclasses.replace(DONE, error="timeout")
    assert is_good(DONE, {})
    assert not is_good(failed, {})
    assert not is_good(failed, {"e2e": 9000.0})


def test_a_measure_that_cannot_be_is_no_fault():
    single = dataclasses.replace(DONE, token_s=[0.5], output_tokens=1)
    assert is_good(single, {"itl": 1.0, "tpot": 1.0})


def test_a_measure_that_the_server_hides_is_one():
    uncounted = dataclasses.replace(DONE, output_tokens=None)
    assert is_good(uncounted, {"itl": 1000.0})
    assert not is_good(uncounted, {"tpot": 9000.0})
