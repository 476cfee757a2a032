"""Text of several prompts on one stdout, and times by chunks."""

import io
import sys

import pytest

from fdjax.cli.results import Continuation, Stopwatch
from fdjax.cli.writer import TextWriter, emit
from fdjax.serve.outputs import Chunk


def results(count: int) -> list[Continuation]:
    return [Continuation(prompt, [1], seed=0, text="") for prompt in "AB"[:count]]


def test_later_prompts_wait_for_earlier_ones(capsys: pytest.CaptureFixture[str]):
    first, second = results(2)
    writer = TextWriter([first, second])
    second.add(Chunk(1, [1], "two", None))
    writer.update()
    assert capsys.readouterr().out == ""
    first.add(Chunk(0, [1], "one", None))
    writer.update()
    assert capsys.readouterr().out == "=== 1/2 ===\nAone"
    second.add(Chunk(1, [1], "!", "stop"))
    first.add(Chunk(0, [1], "\n", "stop"))
    writer.update()
    assert capsys.readouterr().out == "\n\n=== 2/2 ===\nBtwo!\n"


def test_a_result_without_text_still_has_its_place(
    capsys: pytest.CaptureFixture[str],
):
    (only,) = results(1)
    only.add(Chunk(0, [1], "", "stop"))
    writer = TextWriter([only])
    writer.update()
    assert capsys.readouterr().out == "A\n"


def test_what_was_begun_ends_its_line(capsys: pytest.CaptureFixture[str]):
    (only,) = results(1)
    writer = TextWriter([only])
    only.add(Chunk(0, [1], "half", None))
    writer.update()
    writer.close()
    writer.close()
    assert capsys.readouterr().out == "Ahalf\n"


def test_a_terminal_does_not_obey_the_model(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    emit("a\x1b[2Jb\r\x07é\n\tc")
    monkeypatch.setattr(sys, "stdout", file)
    emit("a\x1b[2Jb")
    monkeypatch.undo()
    assert terminal.getvalue() == "a\ufffd[2Jb\ufffd\ufffdé\n\tc"
    assert file.getvalue() == "a\x1b[2Jb"


def test_speed_counts_what_follows_the_compilation(monkeypatch: pytest.MonkeyPatch):
    times = iter([10.0, 13.0, 13.0, 15.0, 15.0, 16.0, 17.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch = Stopwatch(load_s=2.0)
    chunks = [
        Chunk(0, [1], "", None),  # prefill, compiled
        Chunk(1, [1], "", None),
        Chunk(0, [1] * 8, "", None),  # decode, compiled
        Chunk(1, [1] * 8, "", None),
        Chunk(0, [1] * 8, "", "length"),
        Chunk(1, [1] * 4, "", "stop"),
    ]
    steady = [watch.is_steady for _ in watch.watch(iter(chunks))]
    assert steady == [False, False, True, True, True, True]
    assert watch.num_tokens == 30
    assert watch.timings() == {
        "load_s": 2.0,
        "first_token_s": 3.0,
        "total_s": 7.0,
        "tokens_per_s": 10.0,
    }
