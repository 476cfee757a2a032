"""Options of `fdjax inspect`: how errors name them, and what is not read."""

import json

import pytest
from typer.testing import Result

from tests.cli.conftest import Invoke
from tests.support.hf_model import FIXTURES


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


def refused(result: Result) -> str:
    """What is said of wrong usage, in one line."""
    assert result.exit_code == 2
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("size", ["8", "16"])
def test_a_plan_of_prompts_has_no_pages(invoke: Invoke, size: str):
    """Refused with its default, too; where rows decode it counts."""
    told = refused(invoke("inspect", "--plan", "64@100", "--page-size", size))
    assert "--plan has prompts alone, and has no --page-size; leave one out" in told
    both = invoke("inspect", "--plan", "64@100,512", "--page-size", size)
    assert both.exit_code == 0, both.stderr


@pytest.mark.parametrize("instead", [(), ("--program",), ("--plan", "512")])
def test_a_model_that_is_here_has_no_revision(invoke: Invoke, instead: tuple[str, ...]):
    for model in ("tales-5m", str(FIXTURES / "llama")):
        result = invoke("inspect", model, "--revision", "main", *instead)
        assert result.exit_code == 1
        assert f"revision is 'main', but {model!r} is " in result.stderr
