"""The examples of the page about stacks, each run where its stack is installed."""

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "stacks.md"


def run(
    section: str, *, block: int = 0, instead: Mapping[str, str] | None = None
) -> str:
    """What an example prints, in a process of its own on the CPU.

    Args:
        section: the heading that it stands under.
        block: which of the section's.
        instead: what stands in for words of it that no test can afford.
    """
    heading = re.compile(rf"^## {section}\n(.*?)(?=^## |\Z)", re.M | re.S)
    (text,) = heading.findall(PAGE.read_text())
    code = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)[block]
    for words, others in (instead or {}).items():
        assert words in code
        code = code.replace(words, others)
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
