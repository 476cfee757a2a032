"""Messages of one line and of several, and what is kept of them."""

import io
import pathlib

import pytest

from fdjax.cli import line_reader
from fdjax.cli.line_reader import Typed


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> list[Typed]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    found: list[Typed] = []
    while (one := line_reader.read()) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello \n", Typed("hello")),
        ('"""one line"""\n', Typed("one line", fenced=True)),
        ('"""first\n  second\n"""\n', Typed("first\n  second", fenced=True)),
        ('"""\n/not a command\n"""\n', Typed("/not a command", fenced=True)),
        ('"""cut\nshort', Typed("cut\nshort", fenced=True)),
        ('""""""\n', Typed("", fenced=True)),
    ],
)
def test_a_message(monkeypatch: pytest.MonkeyPatch, text: str, message: Typed):
    assert typed(monkeypatch, text) == [message]


def test_what_follows_a_block_is_another_message(monkeypatch: pytest.MonkeyPatch):
    found = typed(monkeypatch, '"""a\nb"""\n/exit\n')
    assert found == [Typed("a\nb", fenced=True), Typed("/exit")]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_history_is_kept_for_its_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", _Terminal())
    readline.clear_history()
    with line_reader.history():
        readline.add_history("a secret")
    place = tmp_path / "fdjax" / "chat_history"
    assert "a" in place.read_text()
    assert place.stat().st_mode & 0o777 == 0o600
    readline.clear_history()
    with line_reader.history():
        assert readline.get_history_item(1) == "a secret"
    readline.clear_history()


def test_without_a_terminal_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    with line_reader.history():
        line_reader.read()
    assert not [*tmp_path.iterdir()]
