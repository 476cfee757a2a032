"""`fdjax` as a process: its streams, its signals and its exit codes."""

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import pytest

FDJAX = (sys.executable, "-m", "fdjax")
SMALL = ("--max-model-len", "1024", "--max-num-seqs", "1", "--temperature", "0")
LONG = ("generate", "Once upon a time", *SMALL, "--max-tokens", "1000", "--ignore-eos")
# After some tokens it stands still, until its stdin ends: what comes meanwhile comes
# amid an answer. Shells start background sequences with Ctrl-C ignored, and children
# inherit that.
STANDING = (
    sys.executable,
    "-c",
    "import os, signal\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from fdjax.cli import main\n"
    "from fdjax.engine.engine import Engine\n"
    "step, free = Engine.step, iter('abc')\n"
    "def standing(engine):\n"
    "    if next(free, None) is None:\n"
    "        os.read(0, 1)\n"
    "    return step(engine)\n"
    "Engine.step = standing\n"
    "main()\n",
)
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def test_help_does_not_wait_for_jax():
    code = (
        "import sys; sys.argv = ['fdjax', '--help']\n"
        "from fdjax.cli import main\n"
        "try: main()\n"
        "finally: assert not {'jax', 'flax', 'numpy'} & set(sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "generate" in result.stdout


def test_shells_complete_the_commands():
    environment = os.environ | {
        "_FDJAX_COMPLETE": "complete_bash",
        "COMP_WORDS": "fdjax do",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(
        FDJAX, check=False, capture_output=True, text=True, env=environment
    )
    assert result.stdout.split() == ["doctor"]


@pytest.mark.cpu
@pytest.mark.parametrize("command", [("inspect",), ("serve", "--port", "0")])
def test_a_device_that_is_not_there(command: tuple[str, ...]):
    """One line, of `fdjax serve` from the engine's process."""
    done = subprocess.run(
        [*FDJAX, *command],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cuda"},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: JAX_PLATFORMS is 'cuda', and JAX starts no device")


def test_json_and_nothing_else(tmp_path: pathlib.Path):
    arguments = ("generate", "Once upon a time", *SMALL, "--max-tokens", "9", "--json")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # JAX's own would be used
    result = subprocess.run(
        [*FDJAX, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    kept = [*(tmp_path / "fdjax" / "programs").glob("*-cache")]
    assert kept, "the next command would compile all again"
    (line,) = result.stdout.splitlines()
    output = json.loads(line)
    assert output["text"].startswith(" there ")
    assert output["timings"]["load_s"] > 0
    (closing,) = result.stderr.splitlines()
    assert closing.startswith("[9 tokens")


def test_a_reader_who_leaves_hears_no_complaint():
    process = subprocess.Popen(
        [*STANDING, *LONG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == b"Once"
    process.stdout.close()
    process.stdin.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_an_interrupt_leaves_the_terminal_clean():
    terminal, its_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [*STANDING, *LONG],
        stdin=subprocess.PIPE,
        stdout=its_end,
        stderr=its_end,
        env=environment,
    )
    os.close(its_end)
    seen = _read_until(terminal, b" there ")
    process.send_signal(signal.SIGINT)
    seen += _read_rest(terminal)
    os.close(terminal)
    assert process.wait(timeout=120) == 130
    assert process.stdin is not None
    process.stdin.close()
    assert b"Traceback" not in seen
    assert seen.count(HIDE_CURSOR) == seen.count(SHOW_CURSOR) > 0
    assert seen.endswith(b"\r\n"), "the next prompt begins a line"


def _read_until(terminal: int, text: bytes) -> bytes:
    seen, until = b"", time.monotonic() + 120
    while text not in seen:
        assert time.monotonic() < until, seen
        seen += os.read(terminal, 4096)
    return seen


def _read_rest(terminal: int) -> bytes:
    seen = b""
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
    except OSError:  # Linux says EIO where the other end is closed
        pass
    return seen
