"""Measurements of single kernels: `python -m benchmarks.kernels PROGRAM [OPTION ...]`.

Each program is a module of this package and takes options of its own (`--help`).
"""

import argparse
import importlib
import sys

PROGRAMS = ("matmul", "attention", "decode_attention", "draw", "page_move")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    program = parser.parse_args(sys.argv[1:2]).program
    sys.argv = [f"python -m benchmarks.kernels {program}", *sys.argv[2:]]
    importlib.import_module(f"benchmarks.{program}").main()


if __name__ == "__main__":
    main()
