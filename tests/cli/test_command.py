"""Help with whole names, and options of vLLM's that are not there."""

import re

import pytest
from typer.testing import CliRunner

from fdjax.cli.app import app

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
    ],
)
def test_an_option_of_vllm_has_a_remedy(option: str, remedy: str):
    result = CliRunner().invoke(app, ["serve", "tales-5m", option])
    told = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert f"No such option: {option.partition('=')[0]}" in told
    assert remedy in told


def test_any_other_option_is_unknown():
    result = CliRunner().invoke(app, ["serve", "--no-such-thing"])
    assert result.exit_code == 2
    assert "vLLM" not in result.stderr
