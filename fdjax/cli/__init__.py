"""The command line: `fdjax generate`, `chat`, `serve`, `bench` and the others."""

import io
import os
import sys

from fdjax.cli.app import app

# What libraries say about their own options helps no one who typed `fdjax`.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}

INTERRUPTED = 130


def main() -> None:
    """Runs the command line and exits: 0, 1 (it failed), 2 (wrong usage) or 130."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="fdjax")
    except KeyboardInterrupt:  # between the interpreter's start and the command's
        sys.exit(INTERRUPTED)
