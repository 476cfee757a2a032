"""One token a row: the CUDA kernel against the definition, as XLA compiles it.

Draws stand one after the other in a loop inside one jitted call, whose body is one CUDA
graph. Each of six has logits of its own: up to 8 rows all of them stay in the L2 cache,
as the logits of a step do, which have just been written there. They do not depend on
each other, so that XLA may join its own; each call of the kernel stays by itself.
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
from fdjax.kernels.draw import OP, Draw
from fdjax.kernels.matmul.timing import OPTIONS, READ_CEILING_GB_S
from fdjax.notation import Array

VOCAB = 128_256
ROWS = (1, 8, 64, 256)
# Temperature 1; an argmax where there is none.
ASKED: dict[str, dict[str, float] | None] = {
    "greedy": None,
    "temperature": {},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
}
# Standard deviation of the logits: of random weights, and nearer to a language model's.
SPREADS = {"flat": 1.0, "peaked": 4.0}
COPIES = 6  # XLA makes a graph of no fewer than five kernels
RUN_US, REPEATS, LAUNCHES = 3_000, 5, 3


def calls(num_rows: int, spread: float, asked: dict[str, float] | None) -> list[Draw]:
    """Draws from different logits."""
    random = np.random.default_rng(0)
    block = spread * random.standard_normal((num_rows, VOCAB), np.float32)

    def filled(name: str, dtype: jax.typing.DTypeLike) -> Array | None:
        value = (asked or {}).get(name)
        return None if value is None else jnp.full(num_rows, value, dtype)

    made: list[Draw] = []
    for copy in range(COPIES):
        logits = jnp.roll(jnp.asarray(block), copy * 997, axis=1)
        if asked is None:
            made.append(Draw(logits, None, None, None, None, None, None))
            continue
        keys = jnp.asarray(random.integers(0, 2**32, (num_rows, 2), np.uint32))
        made.append(
            Draw(
                logits,
                keys,
                jnp.arange(num_rows, dtype=jnp.int32),
                jnp.ones(num_rows),
                filled("top_k", jnp.int32),
                filled("top_p", jnp.float32),
                filled("min_p", jnp.float32),
            )
        )
    return made


def microseconds(implementation: str, draws: Sequence[Draw], expected_us: float) -> Any:
    """Of one draw, in each repeat."""
    rounds = math.ceil(RUN_US / expected_us / len(draws))

    def run(draws: Sequence[Draw]) -> list[Array]:
        def one_round(_: Any, carry: Any) -> Any:
            draws, _ = carry
            tokens = [OP(call) for call in draws]
            return jax.lax.optimization_barrier((draws, tokens))

        tokens = [jnp.zeros(len(call.logits), jnp.int32) for call in draws]
        return jax.lax.fori_loop(0, rounds, one_round, (draws, tokens))[1]

    with OP.using(implementation):
        compiled = jax.jit(run).lower(draws).compile(compiler_options=OPTIONS)
    for _ in range(2):  # loaded, then captured in a graph
        jax.block_until_ready(compiled(draws))
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        done = [compiled(draws) for _ in range(LAUNCHES)]
        jax.block_until_ready(done)
        elapsed = time.perf_counter() - start
        times.append(elapsed * 1e6 / LAUNCHES / rounds / len(draws))
    return times


def measure(num_rows: int, spread: str, asked: str) -> dict[str, Any]:
    """One row of the results."""
    draws = calls(num_rows, SPREADS[spread], ASKED[asked])
    floor_us = 4 * num_rows * VOCAB / READ_CEILING_GB_S / 1e3
    row: dict[str, Any] = {"rows": num_rows, "vocab": VOCAB, "asked": asked}
    row |= {"logits": spread, "floor_us": round(floor_us, 2)}
    for name in OP.names:
        # What the definition takes does not depend on the logits.
        again = name == "reference" and spread != "flat"
        if again or OP.refuse(name, draws[0]) is not None:
            continue
        slow = name == "reference" and asked not in ("greedy", "temperature")
        repeats = microseconds(name, draws, 500.0 if slow else 5.0 + floor_us)
        us = statistics.median(repeats)
        # XLA leaves out draws whose tokens nobody asks for: reading is the least.
        assert us > floor_us, f"{name}: {us} us, and reading takes {floor_us}"
        row[f"{name}_us"] = round(us, 2)
        row[f"{name}_spread"] = round((max(repeats) - min(repeats)) / us, 3)
    return {**row, **results.provenance()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--asked", default=",".join(ASKED))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    needs.gpu()
    folder = results.RESULTS / results.device_slug()
    rows: list[dict[str, Any]] = []
    for num_rows in map(int, options.rows.split(",")):
        for asked in options.asked.split(","):
            for spread in ["flat"] if asked == "greedy" else SPREADS:
                rows.append(measure(num_rows, spread, asked))
                print(rows[-1], flush=True)
                results.write(options.out or folder / "draw.json", rows)
