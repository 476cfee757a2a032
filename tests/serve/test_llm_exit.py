"""A program that ends in the middle of a text ends quietly."""

import subprocess
import sys

import pytest

PROGRAM = """
import fdjax
llm = fdjax.LLM(max_model_len=1024, max_num_seqs=2)
params = fdjax.SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
chunks = llm.stream(["Once upon a time", "The old king"], params)
next(chunks)
"""


@pytest.mark.parametrize(
    ("end", "status", "last"),
    [
        ("", 0, ""),
        ("chunks.close()", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
    ],
)
def test_an_end_in_the_middle_of_a_text(end: str, status: int, last: str):
    command = [sys.executable, "-c", f"{PROGRAM}\n{end}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert (done.stderr.splitlines() or [""])[-1] == last
    assert "ignored" not in done.stderr
