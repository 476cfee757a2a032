"""`fdjax bench latency`."""

import json
import pathlib
import statistics

import pytest

from fdjax.cli.options import ModelOptions
from tests.cli.conftest import Invoke

SMALL = ("--input-len", "4", "--output-len", "9", "--repeats", "3")


def test_a_table_and_a_file(
    invoke: Invoke, loaded: list[ModelOptions], tmp_path: pathlib.Path
):
    path = tmp_path / "latency.json"
    result = invoke(
        "bench", "latency", *SMALL, "--batch-size", "2", "--json", str(path)
    )
    assert result.exit_code == 0, result.stderr
    for text in ("tales-5m: 2 x 4 in, 9 out", "whole batch, ms", "first token, ms"):
        assert text in result.stdout
    assert loaded[0].max_num_seqs == 2
    found = json.loads(path.read_text())
    assert found["benchmark"] == "latency"
    assert (found["model"], found["dtype"], found["batch_size"]) == (
        "tales-5m",
        "float32",
        2,
    )
    assert (found["input_len"], found["output_len"], found["warmup"]) == (4, 9, 1)
    for name in ("total_s", "first_token_s", "per_token_s"):
        times = found[name]
        assert len(times["values"]) == 3
        assert times["median"] == statistics.median(times["values"])
    longest, whole = found["first_token_s"]["largest"], found["total_s"]["largest"]
    assert 0 < found["per_token_s"]["smallest"] < longest < whole


@pytest.mark.usefixtures("loaded")
def test_json_on_stdout_is_all_there_is(invoke: Invoke):
    result = invoke("bench", "latency", *SMALL, "--json", "-")
    assert json.loads(result.stdout)["batch_size"] == 1


@pytest.mark.usefixtures("loaded")
def test_one_token_has_no_time_between(invoke: Invoke):
    arguments = ("--input-len", "4", "--output-len", "1", "--repeats", "1")
    shown = invoke("bench", "latency", *arguments)
    assert shown.exit_code == 0, shown.stderr
    line = next(line for line in shown.stdout.splitlines() if "each token" in line)
    assert line.split()[-5:] == ["-"] * 5
    found = invoke("bench", "latency", *arguments, "--json", "-")
    assert json.loads(found.stdout)["per_token_s"] is None


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-size", "3", "--max-num-seqs", "2"], "--batch-size is 3, but"),
        (["--output-len", "126"], "make 130 tokens, but --max-model-len is 128"),
        (["--json", "no-such-folder/a.json"], "no-such-folder is no folder"),
    ],
)
def test_errors_are_one_line(invoke: Invoke, options: list[str], message: str):
    result = invoke("bench", "latency", *SMALL[:2], *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "option", ["--batch-size", "--input-len", "--output-len", "--repeats"]
)
def test_wrong_usage(invoke: Invoke, option: str):
    assert invoke("bench", "latency", option, "0").exit_code == 2
