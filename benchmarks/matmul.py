"""Flat GEMMs: ours, XLA's dot and cuBLAS, against the time of the bytes.

Each GEMM runs over several copies of the weight, together larger than the L2 cache,
one after the other: ours and XLA's in a loop inside one jitted call, whose body is one
CUDA graph; cuBLAS in a graph of torch's. Results have the weight's type, bfloat16.

Ours is what the package would take for the shape: gemv, flat, or XLA's dot.
"""

import argparse
import pathlib
import statistics
import time
from typing import Any

import jax.numpy as jnp

from benchmarks import needs, results
from fdjax.kernels.matmul import cases, config, timing
from fdjax.kernels.matmul.timing import Stopwatch, Way, floor_us, num_copies

DTYPE = jnp.bfloat16
REPEATS, LAUNCHES = 5, 3


def time_cublas(m: int, n: int, k: int) -> float | None:
    """Microseconds of one GEMM by cuBLAS, where torch is installed with CUDA."""
    try:
        import torch  # pyright: ignore[reportMissingImports]  (group parity)
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    copies = num_copies(n, k)
    launches = LAUNCHES * timing.num_rounds(n, k, copies)
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    matrices = [torch.randn(n, k, **options) for _ in range(copies)]
    x = torch.randn(m, k, **options)
    torch.mm(x, matrices[0].T)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for matrix in matrices:
            torch.mm(x, matrix.T)
    times: list[float] = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(launches):
            graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) / launches / copies * 1e6


def measure(
    m: int, n: int, k: int, watch: Stopwatch, *, xla: bool, cublas: bool
) -> dict[str, Any]:
    """Microseconds of every implementation that serves a GEMM."""
    ways: dict[str, Way] = {"gemv": "gemv", "flat": "flat"}
    if xla:
        ways["reference"] = "reference"
    for name, way in list(ways.items()):
        if timing.refuse(way, m, n, k, DTYPE) is not None:
            del ways[name]
    us = watch.microseconds(list(ways.values()), m, repeats=REPEATS, launches=LAUNCHES)
    row: dict[str, Any] = dict(zip((f"{way}_us" for way in ways), us, strict=True))
    row["cublas_us"] = time_cublas(m, n, k) if cublas else None
    taken = next((way for way in config.choose(m, n, k) if way in ways), "reference")
    row |= {"taken": taken, "ours_us": row.get(f"{taken}_us")}
    row |= {"by": config.source_of(n, k), "floor_us": floor_us(n, k)}
    if "flat" in ways:
        row["flat_config"] = vars(config.flat_config(m, n, k, gated=False))
    return row


def cublas_over_ours(row: dict[str, Any]) -> float | None:
    """How many times as long cuBLAS takes; `None` where one was not measured."""
    ours, cublas = row.get("ours_us"), row.get("cublas_us")
    return None if ours is None or cublas is None else cublas / ours


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--m", default=",".join(map(str, cases.BENCH_M)))
    parser.add_argument("--shapes", default=",".join(s[0] for s in cases.LLAMA3_8B))
    parser.add_argument("--xla", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cublas", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args()


def _default_path() -> pathlib.Path:
    return results.RESULTS / results.device_slug() / "matmul.json"


def line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    columns = ("floor_us", "ours_us", "gemv_us", "flat_us", "reference_us", "cublas_us")
    shown = (f"{c[:-3]} {row[c]:.1f}" for c in columns if row.get(c) is not None)
    ratio = cublas_over_ours(row)
    told = "" if ratio is None else f"  cublas/ours {ratio:.2f}"
    return f"{row['shape']:8} M={row['m']:<3} {'  '.join(shown)} ({row['taken']}){told}"


def summary(rows: list[dict[str, Any]]) -> str:
    """The mean ratio, and the least."""
    ratios = [ratio for row in rows if (ratio := cublas_over_ours(row)) is not None]
    if not ratios:
        return "cublas/ours: not measured; cuBLAS needs torch with CUDA"
    return f"cublas/ours: mean {statistics.mean(ratios):.3f}, least {min(ratios):.3f}"


def main() -> None:
    """Measures, prints a line a GEMM and the mean, and writes the results."""
    options = _parse()
    needs.gpu()
    rows: list[dict[str, Any]] = []
    for name, n, k, _ in cases.LLAMA3_8B:
        if name not in options.shapes.split(","):
            continue
        watch = Stopwatch(n, k, DTYPE)
        for m in map(int, options.m.split(",")):
            row = measure(m, n, k, watch, xla=options.xla, cublas=options.cublas)
            rows.append({"shape": name, "m": m, "n": n, "k": k, **row})
            print(line(rows[-1]), flush=True)
        del watch
    print(summary(rows))
    rounded = [
        {key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()}
        for row in rows
    ]
    results.write(
        options.out or _default_path(),
        [{**row, **results.provenance()} for row in rounded],
    )
