"""Times of one GEMM: over copies of the weight that the L2 cache does not hold.

The GEMMs stand one after the other in a loop inside one jitted call, whose body is
one CUDA graph. They depend on nothing that the loop changes: a barrier forbids XLA to
compute them before it. (Chained through the residual, XLA's dots would not wait for
each other: it computes all, and then their sums in one kernel.) Results have x's type.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.matmul import OP, Matmul, handler
from fdjax.kernels.matmul.params import FlatConfig
from fdjax.kernels.op import REFERENCE
from fdjax.kernels.weight import Dense
from fdjax.notation import Array

type Way = str | FlatConfig
"""An implementation by its name, or `flat` with one launch config."""

# Measured on one H200: 12 GiB read by 1,056 blocks.
READ_CEILING_GB_S = 4669.0
ROTATED_BYTES = 1_000_000_000
# XLA makes a graph of no fewer than five kernels.
MIN_CALLS, MAX_COPIES = 6, 32
RUN_US, LEAST_US = 5_000, 2.0  # no kernel is shorter

OPTIONS = {
    # Dots that share x are not to become one,
    "xla_gpu_dot_merger_threshold_mb": 0,
    # and each waits for the one before it, as in a step.
    "xla_gpu_command_buffer_scheduling_mode": "SERIALIZE",
}


class Stopwatch:
    """Times GEMMs with one weight; holds its copies on the device.

    Args:
        n: rows of the weight.
        k: its columns.
        dtype: of weight, x and result.
    """

    def __init__(self, n: int, k: int, dtype: jax.typing.DTypeLike) -> None:
        self._shape = n, k
        self._weights = _copies(n, k, jnp.dtype(dtype))
        self._programs: dict[tuple[Way, int], Any] = {}

    def microseconds(
        self, ways: Sequence[Way], m: int, *, repeats: int = 5, launches: int = 3
    ) -> list[float]:
        """Medians of one GEMM, in the order of `ways`.

        Programs are compiled before any is timed: ours together, then XLA's, for which
        it times candidates of its own.

        Args:
            ways: what computes the GEMM.
            m: rows of x.
            repeats: timings of which the median is taken.
            launches: loops of a timing, of `RUN_US` or more each.
        """
        x = _random_x(m, self._shape[1], self._weights[0].dtype)
        new = [way for way in ways if (way, m) not in self._programs]
        ours = [way for way in new if way != REFERENCE]
        with ThreadPoolExecutor() as pool:
            made = list(pool.map(lambda way: self._compile(way, x), ours))
        self._programs |= {(way, m): run for way, run in zip(ours, made, strict=True)}
        if len(ours) < len(new):
            self._programs[REFERENCE, m] = self._compile(REFERENCE, x)
        return [
            self._time(self._programs[way, m], x, repeats=repeats, launches=launches)
            for way in ways
        ]

    def _compile(self, way: Way, x: Array) -> Any:
        run = loop(way, rounds=num_rounds(*self._shape, len(self._weights)))
        lowered = jax.jit(run).lower(x, self._weights)
        return lowered.compile(compiler_options=OPTIONS)

    def _time(self, run: Any, x: Array, *, repeats: int, launches: int) -> float:
        calls = num_rounds(*self._shape, len(self._weights)) * len(self._weights)
        for _ in range(2):  # loaded, then captured in a graph
            jax.block_until_ready(run(x, self._weights))
        times: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            done = [run(x, self._weights) for _ in range(launches)]
            jax.block_until_ready(done)
            times.append((time.perf_counter() - start) / launches)
        return statistics.median(times) / calls * 1e6


def loop(way: Way, *, rounds: int) -> Callable[[Array, Sequence[Array]], Array]:
    """A program of GEMMs with each of several weights, over and over.

    What it returns is of no use, and small: the GEMMs' results stay at one address,
    so that their graph need not be changed between two launches.
    """
    gemm = _gemm(way)

    def run(x: Array, weights: Sequence[Array]) -> Array:
        def one_round(_: Any, carry: Any) -> Any:
            x, _ = carry
            ys = [gemm(x, weight) for weight in weights]
            return jax.lax.optimization_barrier((x, ys))

        ys = [jnp.zeros((x.shape[0], weight.shape[0]), x.dtype) for weight in weights]
        _, ys = jax.lax.fori_loop(0, rounds, one_round, (x, ys))
        return jnp.stack([y[0, 0] for y in ys])

    return run


def refuse(way: Way, m: int, n: int, k: int, dtype: jax.typing.DTypeLike) -> str | None:
    """Why a GEMM cannot be computed this way here, or `None`."""
    struct = jax.ShapeDtypeStruct
    name = way if isinstance(way, str) else "flat"
    return OP.refuse(name, _call(struct((m, k), dtype), struct((n, k), dtype)))


def floor_us(n: int, k: int) -> float:
    """The time of reading a weight of two bytes an element once."""
    return 2 * n * k / READ_CEILING_GB_S / 1e3


def num_copies(n: int, k: int, itemsize: int = 2) -> int:
    """Copies of a weight that are more than the L2 cache holds, two at least."""
    return min(MAX_COPIES, max(2, ROTATED_BYTES // (itemsize * n * k)))


def num_rounds(n: int, k: int, calls: int) -> int:
    """Rounds over `calls` GEMMs that take `RUN_US` or more."""
    return math.ceil(RUN_US / max(floor_us(n, k), LEAST_US) / calls)


def _gemm(way: Way) -> Callable[[Array, Array], Array]:
    """`matmul`, computed in one way."""

    def gemm(x: Array, weight: Array) -> Array:
        if isinstance(way, FlatConfig):
            return handler.run(_call(x, weight), way)
        with OP.using(way):
            return OP(_call(x, weight))

    return gemm


def _call(x: Any, weight: Any) -> Matmul:
    operands = x, Dense(weight), None, None
    return Matmul(*operands, activation=None, out_dtype=x.dtype)


def _copies(n: int, k: int, dtype: np.dtype) -> list[Array]:
    """A random weight and its copies, as often as makes a graph."""
    block = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    weight = jnp.asarray(np.resize(block.astype(dtype), (n, k)))
    copies = num_copies(n, k, dtype.itemsize)
    weights = [weight, *(weight.copy() for _ in range(copies - 1))]
    return weights * math.ceil(MIN_CALLS / copies)


def _random_x(m: int, k: int, dtype: np.dtype) -> Array:
    return jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), dtype)
