"""Help with whole names, and options of vLLM's that are not there."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fdjax.cli.app import app
from fdjax.cli.command import _OF_THE_SERVER, _remedy
from fdjax.serve.vllm_words import ONLY

NARROW = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


@pytest.mark.parametrize("command", ["serve", "generate", "bench serve"])
def test_help_cuts_no_name(command: str):
    result = CliRunner().invoke(app, [*command.split(), "--help"], env=NARROW)
    assert result.exit_code == 0
    assert "--" in result.stdout
    assert not re.search(r"--[\w,-]*…", result.stdout)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--tensor-parallel-size=2", "one device computes"),
        ("-tp=2", "one device computes"),
        ("--chat-template=a.jinja", "the model's folder; put it there"),
        ("--enforce-eager", "compiles every step"),
        ("--no-enable-prefix-caching", "always on"),
        ("--ssl-keyfile=key.pem", "proxy"),
        ("--kv-cache-memory-bytes=1", "give --memory-fraction"),
        ("--rope-scaling={}", "a folder with files of your own"),
        ("--root-path=/llm", "proxy"),
    ],
)
def test_an_option_of_vllm_has_a_remedy(option: str, remedy: str):
    result = CliRunner().invoke(app, ["serve", "tales-5m", option])
    told = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert f"No such option: {option.partition('=')[0]}" in told
    assert remedy in told


def test_remedies_are_for_who_runs_a_server():
    """Words of Python's `LLM` are none on a command line."""
    options = {f"--{name.replace('_', '-')}" for name in {*ONLY, *_OF_THE_SERVER}}
    for option in options:
        remedy = _remedy(option)
        assert remedy, option
        words = ("hf_overrides", "SamplingParams", "PoolingParams", "memory_fraction")
        assert not any(word in remedy for word in words), (option, remedy)


def test_what_is_refused_is_not_there():
    serve = get_command(app).commands["serve"]  # pyright: ignore[reportAttributeAccessIssue]  (it is a group)
    there = {name for each in serve.params for name in each.opts}
    assert not there & {f"--{one.replace('_', '-')}" for one in _OF_THE_SERVER}


def test_any_other_option_is_unknown():
    result = CliRunner().invoke(app, ["serve", "--no-such-thing"])
    assert result.exit_code == 2
    assert "vLLM" not in result.stderr
