"""Decode attention of one layer, of this checkout and of another, in turns.

`python -m benchmarks.decode_in_turns FOLDER --commit NAME` has both in processes of
their own on one GPU, and asks one and then the other for the time of a case: what the
card and its clock do meets both alike. FOLDER is a checkout with its extension in it.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parents[1]
TURNS = 16
SAMPLE_US = 60_000.0


def serve() -> None:
    """Of the checkout on Python's path: prepares all cases, then times what is asked.

    Asked for a case's place by a line, it answers with microseconds of one layer. No
    more is used of a checkout than all of them have had since 732ef51.
    """
    import jax

    from benchmarks import decode_attention as bench
    from fdjax.kernels.cases import tagged

    cases = tagged(bench.cases.CASES, "bench")
    prepared: list[tuple[str, Any, Any, int]] = []
    with bench.OP.using("cuda"):
        for case in cases:
            call = bench.full(case)
            for scheme, unified in bench.SCHEMES.items():
                run = bench.program(unified)
                layers = len(jax.block_until_ready(run(call)))
                prepared.append((f"{case.name} {scheme}", run, call, layers))
        print(json.dumps([name for name, *_ in prepared]), flush=True)
        for line in sys.stdin:
            _, run, call, layers = prepared[int(line)]
            launches, elapsed = 4, 0.0
            while elapsed < SAMPLE_US:  # the first is short, and says how many will do
                if elapsed:
                    launches = int(launches * 1.1 * SAMPLE_US / elapsed) + 1
                last, start = None, time.perf_counter()
                for _ in range(launches):
                    last = run(call)
                jax.block_until_ready(last)
                elapsed = (time.perf_counter() - start) * 1e6
            print(elapsed / launches / layers, flush=True)


class Checkout:
    """One that serves, in a process of its own.

    Args:
        folder: of the checkout.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(pathlib.Path(__file__).resolve()), "--serve"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "XLA_PYTHON_CLIENT_MEM_FRACTION": ".4",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def names(self) -> list[str]:
        """Cases and schemes, when all are ready."""
        return json.loads(self._answer())

    def microseconds(self, place: int) -> float:
        """Of one layer of a case, once."""
        assert self._process.stdin is not None
        print(place, file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a checkout ended with status {self._process.wait()}")
        return line


def compared(
    names: Sequence[str], checkouts: Sequence[Checkout]
) -> list[tuple[list[float], ...]]:
    """The times of each case, of this checkout and of the other."""
    times: list[tuple[list[float], ...]] = [([], []) for _ in names]
    for turn in range(TURNS):
        for place in range(len(names)):
            for who in (0, 1) if turn % 2 else (1, 0):
                times[place][who].append(checkouts[who].microseconds(place))
    return times


def main() -> None:
    """Measures, and writes `decode_in_turns.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--commit", help="of the other checkout")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.folder is None or options.commit is None:
        parser.error("the folder and --commit of the other checkout are missing")
    from benchmarks import needs  # a checkout that serves has perhaps no such module

    needs.gpu(apart=True)
    checkouts = [Checkout(HERE), Checkout(options.folder.resolve())]
    names, others = (checkout.names() for checkout in checkouts)
    if names != others:
        raise SystemExit(f"the cases differ: {names} here, {others} there")
    times = compared(names, checkouts)
    for checkout in checkouts:
        checkout.close()
    from benchmarks import results  # JAX starts here, when they have left the GPU

    rows: list[dict[str, Any]] = []
    for name, both in zip(names, times, strict=True):
        us, other_us = map(statistics.median, both)
        case, scheme = name.split()
        rows.append(
            {
                "case": case,
                "scheme": scheme,
                "us": round(us, 2),
                "other_us": round(other_us, 2),
                "ratio": round(us / other_us, 4),
                "other_commit": options.commit,
                **results.provenance(),
            }
        )
        print(rows[-1], flush=True)
    folder = results.RESULTS / results.device_slug()
    results.write(options.out or folder / "decode_in_turns.json", rows)


if __name__ == "__main__":
    main()
