"""`fdjax calibrate`: from a text to a file that `fdjax generate` takes."""

import json
import pathlib
import sys

import pytest

from fdjax.models.calibration import read_calibration
from tests.cli.conftest import Invoke

SHORT = ("--context", "32", "--max-tokens", "64")


@pytest.fixture
def story(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "story.txt"
    path.write_text("There was once a king who had three sons and one daughter. " * 8)
    return str(path)


@pytest.fixture
def other(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "other.txt"
    path.write_text("0123456789 <unk> {}[]" * 8)
    return str(path)


def test_tables_a_file_and_a_picture(
    invoke: Invoke, story: str, other: str, tmp_path: pathlib.Path
):
    out, plot = tmp_path / "softmax.json", tmp_path / "scores.png"
    result = invoke(
        "calibrate",
        *("--text", story, "--second-text", other, "--out", str(out)),
        *("--plot", str(plot), "--coverage", "0.99", *SHORT),
    )
    assert result.exit_code == 0, result.stderr
    for text in ("Softmax of tales-5m", "phi, low, high", "story.txt", "other.txt"):
        assert text in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = read_calibration(out)
    assert found.models == ("tales-5m",)
    assert found.coverage == 0.99
    assert [text.text for text in found.texts] == ["story.txt", "other.txt"]
    assert [text.tokens for text in found.texts] == [64, 64]
    assert found.unified is not None
    assert len(found.layers) == 6

    generated = ["Once upon", "--max-tokens", "3", "--temperature", "0", "--json"]
    lines = [
        invoke("generate", *generated, "--softmax", softmax)
        for softmax in (str(out), "synchronised", "0,-40,40")
    ]
    assert [line.exit_code for line in lines] == [0, 0, 0], lines[0].stderr
    assert len({str(json.loads(line.stdout)["token_ids"]) for line in lines}) == 1


def test_json_is_the_file(invoke: Invoke, story: str, tmp_path: pathlib.Path):
    out = tmp_path / "softmax.json"
    result = invoke(
        "calibrate",
        "--text",
        story,
        "--out",
        str(out),
        "--margin",
        "0",
        "--json",
        *SHORT,
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == out.read_text()
    assert json.loads(result.stdout)["margin"] == 0


def test_a_picture_needs_matplotlib(
    invoke: Invoke, story: str, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = invoke("calibrate", "--text", story, "--plot", "scores.png", *SHORT)
    assert result.exit_code == 1
    assert "--plot needs matplotlib, which is not installed" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coverage", "2"], "coverage is 2.0"),
        (["--margin", "-1"], "margin is -1.0"),
        (["--out", "no-such-folder/a.json"], "no-such-folder is no folder"),
        (["--model", "no-such-model"], "there is no folder 'no-such-model'"),
    ],
)
def test_errors_are_one_line(
    invoke: Invoke, story: str, options: list[str], message: str
):
    result = invoke("calibrate", "--text", story, *options, *SHORT)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_an_empty_text_is_an_error(invoke: Invoke, tmp_path: pathlib.Path):
    path = tmp_path / "empty.txt"
    path.touch()
    result = invoke("calibrate", "--text", str(path), *SHORT)
    assert result.exit_code == 1
    assert "empty.txt has no tokens" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--text", "no-such-file.txt"], ["--context", "1"], ["--max-tokens", "0"]],
)
def test_wrong_usage(invoke: Invoke, story: str, arguments: list[str]):
    given = (
        arguments
        if "--text" in arguments or not arguments
        else [*arguments, "--text", story]
    )
    assert invoke("calibrate", *given).exit_code == 2


@pytest.mark.parametrize(
    ("softmax", "code", "message"),
    [
        ("0,-61,40", 2, "low is -61"),
        ("nan,-1,1", 2, "phi is nan"),
        ("quick", 1, "softmax is 'quick', which is no file"),
    ],
)
def test_a_wrong_softmax_is_an_error(
    invoke: Invoke, softmax: str, code: int, message: str
):
    result = invoke("generate", "Once", "--softmax", softmax)
    assert result.exit_code == code
    assert message in result.stderr.replace("\n", " ")
