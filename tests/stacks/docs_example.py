"""The examples of the page about stacks, each run where its stack is installed."""

import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "stacks.md"


def run(section: str, *, block: int = 0) -> str:
    """What an example prints, in a process of its own on the CPU.

    Args:
        section: the heading that it stands under.
        block: which of the section's.
    """
    heading = re.compile(rf"^## {section}\n(.*?)(?=^## |\Z)", re.M | re.S)
    (text,) = heading.findall(PAGE.read_text())
    code = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)[block]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
