"""fdjax's kernel in ejkernel's registry gives what ejkernel's own gives."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from tests.stacks import docs_example

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ejkernel") is None,
    reason="`.ci/run stacks` installs ejkernel, into an environment of its own",
)


def test_it_serves_and_agrees():
    program = pathlib.Path(__file__).with_name("ejkernel_calls.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("serves") == "fdjax.integrations.ejkernel"
    assert "k_scale is 2.0, and fdjax has no quantised" in found.pop("refused")
    assert "priority is a str; give a whole number" in found.pop("unordered")
    assert found.pop("windowed chunk") < 1e-5
    assert set(found) == {"causal", "window", "soft cap", "sinks"}
    for name, (output, cache) in found.items():
        assert output < 1e-5, name
        assert cache == 0, name


def test_the_example_of_the_docs_runs():
    assert docs_example.run("ejkernel", block=1) == "(1, 4, 128)\n"
