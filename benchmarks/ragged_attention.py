"""Attention of rows that decode, over the caches of other stacks and over ours.

One layer, one query a row, keys and values written already: `fdjax.ops` over its own
pages and over those of ragged paged attention v3, JAX's
`pallas.ops.gpu.paged_attention`, and the paged attention of cuDNN that JAX keeps to
itself. Results are compared before anything is timed; of a peer that does not run, the
error is recorded. Times are those of a clock, with calls one after the other, and on a
GPU also the device's own, of one call at a time: for few rows the host takes longer.

On a CPU the Pallas kernel is interpreted: `--cases 2x64 --calls 2` shows that all runs,
and its times mean nothing.
"""

import argparse
import dataclasses
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.cases import Case, parse_cases
from benchmarks.timeline import device_spans
from fdjax import ops
from fdjax.notation import Array

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16  # Llama-3-8B
REPEATS = 7
TRACED = 32  # calls
CASES = ",".join(
    f"{rows}x{context}"
    for rows in (1, 8, 64, 256)
    for context in (1024, 8192, 32768)
    if rows * context <= 2**21  # each of the three caches then has 8.6 GB
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The same rows as every peer is given them.

    Attributes:
        q: `[B, Hq, D]`.
        kv: keys and values, `[P, Z, Hkv, 2, D]`.
        table: pages of each row, `[B, W]`, in no order.
        lengths: all alike.
    """

    q: Array
    kv: Array
    table: Array
    lengths: Array


def rows_of(case: Case, dtype: jax.typing.DTypeLike) -> Rows:
    """Noise, the same in every run."""
    width = -(-case.context // PAGE_SIZE)
    random = np.random.default_rng(1)
    query, page = jax.random.split(jax.random.key(case.batch + case.context))
    table = random.permutation(case.batch * width).reshape(case.batch, width)
    shape = (case.batch * width, PAGE_SIZE, KV_HEADS, 2, HEAD_DIM)
    return Rows(
        jax.random.normal(query, (case.batch, HEADS, HEAD_DIM), dtype),
        jax.random.normal(page, shape, dtype),
        jnp.asarray(table, jnp.int32),
        jnp.full(case.batch, case.context, jnp.int32),
    )


type Call = tuple[Callable[..., Array], Sequence[Any]]


def native(rows: Rows) -> Call:
    """Ours, over our own pages."""
    pages = jax.jit(lambda kv: kv.transpose(0, 3, 1, 2, 4)[:, None])(rows.kv)

    def attend(q: Array, pages: Array, table: Array, lengths: Array) -> Array:
        view = ops.PageView.decoding(table, lengths)
        kv = ops.KVCache.page_major(pages).layer(0)
        return ops.attention(q, kv, view, scale=HEAD_DIM**-0.5)

    return attend, (rows.q, pages, rows.table, rows.lengths)


def ragged(rows: Rows) -> Call:
    """Ours, over a cache of ragged paged attention v3."""
    dtype, count = rows.kv.dtype, len(rows.q)
    pack = 4 // dtype.itemsize
    cache = rows.kv.reshape(*rows.kv.shape[:2], -1, pack, HEAD_DIM)
    unused = jnp.zeros((count, KV_HEADS, HEAD_DIM), dtype)

    def attend(q: Array, cache: Array, table: Array, lengths: Array) -> Array:
        return ops.ragged_paged_attention(
            q,
            unused,
            unused,
            cache,
            lengths,
            table,
            jnp.arange(count + 1, dtype=jnp.int32),
            jnp.full(3, count, jnp.int32),
            sm_scale=HEAD_DIM**-0.5,
            update_kv_cache=False,
            mode="decode",
        )[0]

    return attend, (rows.q, cache, rows.table, rows.lengths)


def pallas(rows: Rows) -> Call:
    """JAX's own, which does not scale queries; in as many splits as divide pages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAX says: not for long
        from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    halves = jax.jit(lambda kv: tuple(jnp.moveaxis(kv, (3, 2), (0, 1))))(rows.kv)
    width = rows.table.shape[1]
    splits = max(n for n in (1, 2, 4, 8, 16) if width % n == 0)
    block = max(n for n in (1, 2, 4, 8) if width // splits % n == 0)

    def attend(q: Array, k: Array, v: Array, table: Array, lengths: Array) -> Array:
        return paged_attention(
            q * HEAD_DIM**-0.5,
            k,
            v,
            table,
            lengths,
            k_splits=splits,
            pages_per_compute_block=block,
            interpret=jax.default_backend() == "cpu",
        )

    return attend, (rows.q, *halves, rows.table, rows.lengths)


def cudnn(rows: Rows) -> Call:
    """cuDNN's, by way of JAX's private interface; for a GPU alone."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, paged_attention

    halves = jax.jit(lambda kv: tuple(jnp.moveaxis(kv, 3, 0)))(rows.kv)

    def attend(q: Array, k: Array, v: Array, table: Array, lengths: Array) -> Array:
        pages = table[:, None, :, None]
        return paged_attention(
            q[:, None],
            k,
            v,
            jnp.ones_like(lengths),
            lengths,
            pages,
            pages,
            scale=HEAD_DIM**-0.5,
            mask_type=MaskType.PADDING,
        )[:, 0]

    return attend, (rows.q, *halves, rows.table, rows.lengths)


OURS = {"fdjax": native, "fdjax, rpa v3": ragged}
PEERS = {**OURS, "jax pallas": pallas, "cudnn": cudnn}


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


def device_times(run: Callable[..., Array], given: Sequence[Any]) -> dict[str, float]:
    """What a trace tells of single calls, from their first kernel to their last.

    On a CPU nothing: it has no kernels.
    """
    if jax.default_backend() == "cpu":
        return {}
    spans = device_spans(lambda: run(*given), launches=TRACED)
    us = statistics.median(spans)
    return {
        "device_us": round(us, 2),
        "device_spread": round((max(spans) - min(spans)) / us, 4),
    }


def check_equal(out: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Whether a peer's output is that of the first.

    Raises:
        RuntimeError: it is not.
    """
    if not (apart := float(np.max(np.abs(out - expected)))) <= 0.02:  # nor is NaN
        raise RuntimeError(f"{name} is {apart} from {next(iter(PEERS))}")


def measure(
    case: Case, *, calls: int, dtype: jax.typing.DTypeLike
) -> list[dict[str, Any]]:
    """A result for each peer, or why another's has none: it fails, or is not ours.

    Raises:
        RuntimeError: the output of ours over another cache is not that over our own.
    """
    rows = rows_of(case, dtype)
    expected: np.ndarray | None = None
    found: list[dict[str, Any]] = []
    for name, peer in PEERS.items():
        about = {"peer": name, "batch": case.batch, "context": case.context}
        given: Sequence[Any] = ()  # the last peer's are not held beside these
        try:
            attend, given = peer(rows)
            run = jax.jit(attend)
            out = np.asarray(run(*given), np.float32)
            expected = out if expected is None else expected
            check_equal(out, expected, f"{case}: {name}")
            repeats, by_device = times(attend, given, calls), device_times(run, given)
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
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    folder = results.RESULTS / results.device_slug()
    out = options.out or folder / "ragged_attention.json"
    rows: list[dict[str, Any]] = []
    for case in parse_cases(options.cases, steps=0):
        for row in measure(case, calls=options.calls, dtype=options.dtype):
            rows.append(row)
            print(row, flush=True)
        results.write(out, rows)


if __name__ == "__main__":
    main()
