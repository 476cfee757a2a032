"""Attention of rows that decode, over the caches of other stacks and over ours.

One layer, one query a row, keys and values written already: `fdjax.ops` over its own
pages and over those of ragged paged attention v3, JAX's
`pallas.ops.gpu.paged_attention`, the paged attention of cuDNN that JAX keeps to itself,
and ejkernel's CUDA kernel, where ejkernel is installed and has built it. Results are
compared before anything is timed; of a peer that does not run, the error is recorded.
Times are those of a clock, with calls one after the other, and on a GPU also the
device's own, of one call at a time: for few rows the host takes longer. These are the
sum of a call's kernels, and the longest of them, which is the attention.

On a CPU the Pallas kernel is interpreted: `--cases 2x64 --calls 2` shows that all runs,
and its times mean nothing.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import needs, results
from benchmarks.cases import Case, parse_cases
from benchmarks.ragged_peers import OURS, PEERS, rows_of
from benchmarks.timeline import busy_us, device_runs
from fdjax.notation import Array

NAMED = ("peer", "batch", "context")
"""Fields in which rows of the same agree."""
REPEATS = 7
TRACED = 32  # calls
LONGEST_S = 0.5  # of a repeat
CASES = ",".join(
    f"{rows}x{context}"
    for rows in (1, 8, 64, 256)
    for context in (1024, 8192, 32768)
    if rows * context <= 2**21  # each of the three caches then has 8.6 GB
)


def times(
    attend: Callable[..., Array], given: Sequence[Any], calls: int
) -> list[float]:
    """Microseconds a call in each repeat.

    The calls are one program, each of the result of the last one: a call from Python
    takes longer than the kernel does for few rows.
    """

    @jax.jit
    def chain(q: Array, *others: Any) -> Array:
        return jax.lax.fori_loop(0, calls, lambda _, q: attend(q, *others), q)

    jax.block_until_ready(chain(*given))
    repeats: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(chain(*given))
        repeats.append((time.perf_counter() - start) * 1e6 / calls)
    return repeats


def affordable(run: Callable[..., Array], given: Sequence[Any], calls: int) -> int:
    """As many calls of a compiled program as a repeat has the time for, if not all."""
    start = time.perf_counter()
    jax.block_until_ready(run(*given))
    return max(1, min(calls, int(LONGEST_S / (time.perf_counter() - start))))


def device_times(run: Callable[..., Array], given: Sequence[Any]) -> dict[str, float]:
    """What a trace tells of single calls: their kernels' time, and the longest one's.

    The first kernels of a call make a plan and bring what is given into form, which an
    engine does once a step for all layers. On a CPU nothing: it has no kernels.
    """
    if jax.default_backend() == "cpu":
        return {}
    calls = [*map(busy_us, device_runs(lambda: run(*given), launches=TRACED))]
    sums = [*map(sum, calls)]
    us = statistics.median(sums)
    return {
        "device_us": round(us, 2),
        "device_spread": round((max(sums) - min(sums)) / us, 4),
        "longest_us": round(statistics.median(map(max, calls)), 2),
    }


def check_equal(out: np.ndarray, expected: np.ndarray, names: str) -> None:
    """Whether a peer's output is that of the first one.

    Raises:
        RuntimeError: it is not.
    """
    if not (apart := float(np.max(np.abs(out - expected)))) <= 0.02:  # nor is NaN
        raise RuntimeError(f"{names} are {apart} apart")


def measure(
    case: Case, peers: Sequence[str], *, calls: int, dtype: jax.typing.DTypeLike
) -> list[dict[str, Any]]:
    """A result for each peer, or why another's has none: it fails, or is not ours.

    Raises:
        RuntimeError: the output of ours over another cache is not that over our own.
    """
    rows = rows_of(case, dtype)
    expected: np.ndarray | None = None
    found: list[dict[str, Any]] = []
    for name in peers:
        peer = PEERS[name]
        about = {"peer": name, "batch": case.batch, "context": case.context}
        given: Sequence[Any] = ()  # the last peer's are not held beside these
        try:
            attend, given = peer(rows)
            run = jax.jit(attend)
            out = np.asarray(run(*given), np.float32)
            expected = out if expected is None else expected
            check_equal(out, expected, f"{case}: {name} and {peers[0]}")
            repeats = times(attend, given, affordable(run, given, calls))
            by_device = device_times(run, given)
        except Exception as error:  # another's may fail in any way: the rest counts
            if name in OURS:
                raise
            found.append({**about, "error": str(error)[:200], **results.provenance()})
            continue
        us = statistics.median(repeats)
        found.append(
            {
                **about,
                "us": round(us, 2),
                "spread": round((max(repeats) - min(repeats)) / us, 4),
                **by_device,
                "gb_s": round(rows.kv.nbytes / us / 1e3, 1),
                **results.provenance(),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=CASES, help="BATCHxCONTEXT,...")
    parser.add_argument("--calls", type=int, default=50, help="in each repeat")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.cases == CASES:
        needs.gpu(instead="`--cases 2x64 --calls 2` shows that all runs")
    folder = results.RESULTS / results.device_slug()
    out = options.out or folder / "ragged_attention.json"
    for case in parse_cases(options.cases, steps=0):
        for row in measure(
            case, options.peers, calls=options.calls, dtype=options.dtype
        ):
            print(row, flush=True)
            results.keep(out, [row], named=NAMED)


if __name__ == "__main__":
    main()
