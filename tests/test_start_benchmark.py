"""What a server's log says of its start is what the benchmark records."""

import logging

import pytest

from benchmarks import start
from fdjax.cli.start_times import StartTimes
from fdjax.serve.http.logs import JsonFormatter


def _line(message: str, **fields: float) -> str:
    record = logging.LogRecord(
        "fdjax.cli.serve", logging.INFO, __file__, 1, message, None, None
    )
    record.fields = fields
    return JsonFormatter().format(record)


def test_the_parts_of_a_start_are_read_from_the_log():
    spent = {"imports_s": 2.1, "device_s": 3.0, "programs_s": 14.8, "num_compiled": 0}
    log = ["W1127 of XLA", _line("listening"), _line("ready after 25.2 s", **spent)]
    assert start.parts("\n".join(log)) == spent


def test_a_log_without_them_is_an_error():
    with pytest.raises(ValueError, match="no line says"):
        start.parts(_line("listening"))


def test_laps_follow_each_other_from_the_beginning_of_the_process():
    times = StartTimes()
    times.lap("imports")
    before = times.total
    assert before > 0
    times.add("weights", 5.0)
    times.lap("engine")
    assert times.seconds["weights"] == 5.0
    assert times.total == pytest.approx(before, abs=0.5)
    assert list(times.seconds) == ["imports", "weights", "engine"]
