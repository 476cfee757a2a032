"""Programs in an interpreter of their own."""

import subprocess
import sys


def run_python(*lines: str) -> str:
    """Runs a program in a fresh interpreter and returns what it printed."""
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
