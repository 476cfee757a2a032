"""Pages of a KV array copied to other places: GB/s, and the share of a copy's ceiling.

Moves stand one after the other in a loop inside one jitted call that donates the array;
each has pages of its own, together more than the L2 cache holds. Pages are those of
Llama-3-8B, 2 MiB each.
"""

import argparse
import math
import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import needs, results
from fdjax.kernels.matmul.timing import OPTIONS
from fdjax.kernels.page_move import OP, PageMove
from fdjax.kernels.paged import KVCache
from fdjax.notation import Array

PAGE = (32, 2, 16, 8, 128)
PAGES = 2048
MOVES = (1, 8, 64)
# Measured on one H200: 12 GiB copied by the driver, bytes read and bytes written.
COPY_CEILING_GB_S = 4282.0
LAUNCH_US = 2.5  # of a move that copies next to nothing
RUN_US, MAX_CALLS, REPEATS, LAUNCHES = 5_000, 64, 5, 3

type Ids = tuple[Array, Array]


def distinct_moves(moves: int, pages: int) -> list[Ids]:
    """Calls of `moves` pages each; no page of the array is in two of them.

    Raises:
        ValueError: the array has too few pages for one call.
    """
    calls = min(MAX_CALLS, pages // (2 * moves))
    if calls == 0:
        raise ValueError(
            f"{moves} moves need {2 * moves} pages, and there are {pages}; give the "
            "array more (--pages)"
        )
    ids = np.random.default_rng(0).permutation(pages)[: calls * 2 * moves]
    halves = ids.astype(np.int32).reshape(calls, 2, moves)
    return [(jnp.asarray(one[0]), jnp.asarray(one[1])) for one in halves]


def microseconds(
    implementation: str, cache: KVCache, ids: Sequence[Ids], *, least_us: float
) -> tuple[list[float], KVCache]:
    """Of one call, in each repeat; and the array, which each run donates."""
    rounds = math.ceil(RUN_US / least_us / len(ids))

    def run(cache: KVCache, ids: Sequence[Ids]) -> KVCache:
        def one_round(_: Any, cache: KVCache) -> KVCache:
            for sources, targets in ids:
                cache = OP(PageMove(cache, sources, targets))
            return cache

        return jax.lax.fori_loop(0, rounds, one_round, cache)

    with OP.using(implementation):
        lowered = jax.jit(run, donate_argnums=0).lower(cache, ids)
        compiled = lowered.compile(compiler_options=OPTIONS if on_gpu() else None)
    for _ in range(2):  # loaded, then captured in a graph
        cache = jax.block_until_ready(compiled(cache, ids))
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            cache = compiled(cache, ids)
        jax.block_until_ready(cache)
        elapsed = time.perf_counter() - start
        times.append(elapsed * 1e6 / LAUNCHES / rounds / len(ids))
    return times, cache


def on_gpu() -> bool:
    """Whether options of XLA's GPU compiler are known here."""
    return jax.default_backend() == "gpu"


def measure(moves: int, *, pages: int, page: tuple[int, ...] = PAGE) -> dict[str, Any]:
    """One row of the results."""
    dtype = jnp.dtype(jnp.bfloat16)
    page_bytes = math.prod(page) * dtype.itemsize
    num_bytes = 2 * moves * page_bytes
    ids = distinct_moves(moves, pages)
    row: dict[str, Any] = {"moves": moves, "page_bytes": page_bytes}
    row["floor_us"] = round(num_bytes / COPY_CEILING_GB_S / 1e3, 2)
    cache = KVCache.page_major(jnp.zeros((pages, *page), dtype))
    for name in OP.names:
        if OP.refuse(name, PageMove(cache, *ids[0])) is not None:
            continue
        least_us = LAUNCH_US + row["floor_us"]
        repeats, cache = microseconds(name, cache, ids, least_us=least_us)
        us = statistics.median(repeats)
        row[f"{name}_us"] = round(us, 2)
        row[f"{name}_gb_s"] = round(num_bytes / us / 1e3)
        row[f"{name}_spread"] = round((max(repeats) - min(repeats)) / us, 4)
    if "H200" in jax.devices()[0].device_kind and "cuda_gb_s" in row:
        share = row["cuda_gb_s"] / COPY_CEILING_GB_S
        row["fraction_of_copy_ceiling"] = round(share, 4)
    return {**row, **results.provenance()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", default=",".join(map(str, MOVES)))
    parser.add_argument("--pages", type=int, default=PAGES, help="of the array")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    needs.gpu()
    folder = results.RESULTS / results.device_slug()
    rows: list[dict[str, Any]] = []
    for moves in map(int, options.moves.split(",")):
        rows.append(measure(moves, pages=options.pages))
        print(rows[-1], flush=True)
        results.write(options.out or folder / "page_move.json", rows)


if __name__ == "__main__":
    main()
