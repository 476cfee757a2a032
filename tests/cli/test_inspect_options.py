"""Options of `fdjax inspect`: how errors name them, and what is not read."""

import json

import pytest

from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-model-len", 2**20), ("--max-num-seqs", 2**30), ("--page-size", 2**20)],
)
def test_an_error_names_the_option(invoke: Invoke, option: str, value: int):
    result = invoke("inspect", option, str(value))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {option} is {value}")


def test_what_does_not_fit_is_told_in_options(invoke: Invoke):
    """On stderr and in the report alike; weights alone fit."""
    result = invoke("inspect", "--budget", "25MB", "--dtype", "bfloat16", "--json")
    told = json.loads(result.stdout)["problem"]
    assert "lower --max-model-len or --max-num-seqs, or raise --budget" in told
    assert result.stderr == f"error: {told}\n"
