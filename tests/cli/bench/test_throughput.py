"""`fdjax bench throughput`."""

import json
import pathlib

import pytest

from fdjax.cli.options import ModelOptions
from tests.cli.conftest import Invoke

SMALL = ("--input-len", "4", "--output-len", "9", "--repeats", "2")


def test_a_table_and_a_file(
    invoke: Invoke, loaded: list[ModelOptions], tmp_path: pathlib.Path
):
    """More requests than rows: some wait for others."""
    path = tmp_path / "throughput.json"
    arguments = (*SMALL, "--num-prompts", "6", "--json", str(path))
    result = invoke("bench", "throughput", *arguments)
    assert result.exit_code == 0, result.stderr
    for text in ("tales-5m: 6 x 4 in, 9 out", "requests / s", "output tokens / s"):
        assert text in result.stdout
    assert loaded[0].max_num_seqs is None
    found = json.loads(path.read_text())
    assert found["benchmark"] == "throughput"
    assert found["num_prompts"] == 6
    seconds = found["total_s"]["values"]
    for name, amount in (
        ("requests_per_s", 6),
        ("output_tokens_per_s", 54),
        ("total_tokens_per_s", 78),
    ):
        rates = [amount / one for one in seconds]
        assert found[name]["values"] == pytest.approx(rates)


@pytest.mark.usefixtures("loaded")
def test_prompts_that_do_not_fit(invoke: Invoke):
    result = invoke("bench", "throughput", "--input-len", "200")
    assert result.exit_code == 1
    assert "make 328 tokens, but --max-model-len is 128" in result.stderr


def test_wrong_usage(invoke: Invoke):
    assert invoke("bench", "throughput", "--num-prompts", "0").exit_code == 2
    assert invoke("bench").exit_code == 2
