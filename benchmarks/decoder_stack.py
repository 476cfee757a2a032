"""The chain of a decode step's layers, cut in different ways.

What is fastest alone need not be fastest in a chain whose kernels overlap: a kernel's
blocks take room that its successor's first loads would use. This measures the whole
chain, with each of its parts cut otherwise in turn, and keeps what is fastest.
"""

import argparse
import dataclasses
import itertools
import pathlib
import statistics
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.cases import Case, parse_cases
from fdjax import device
from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack import (
    DecoderStack,
    LayerWeights,
    StackSpec,
    config,
    cuda,
)
from fdjax.kernels.decoder_stack.config import GEMV, Cuts
from fdjax.kernels.hopper import NUM_SMS, SHARED_BYTES
from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.paged import KVCache, PageView
from fdjax.kernels.weight import Dense, Weight
from fdjax.notation import Array

PAGE_SIZE = 16
PRODUCTS = ("qkv", "out", "up", "down")
CASES = "1x1024,8x1024,64x1024,1x32768,8x32768"
CHAINS, CALLS, REPEATS = 4, 3, 3
# What a block's ring may hold: an nth of a multiprocessor's shared memory.
RINGS = tuple(int(SHARED_BYTES / part) - 1024 for part in (3, 2, 1.5, 1))
LEAST_IN_FLIGHT = 48 * 1024


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model; those of Llama-3-8B."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 14336
    layers: int = 32


@partial(jax.jit, static_argnames=("shape",))
def _noise(key: Array, *, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape, jnp.bfloat16) * shape[-1] ** -0.5


def draw_layers(sizes: Sizes) -> tuple[LayerWeights, ...]:
    """Random weights; one compilation for each shape."""
    columns = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    mixed = sizes.heads * sizes.head_dim
    ones = jnp.ones(sizes.hidden, jnp.bfloat16)

    def layer(index: int) -> LayerWeights:
        keys = jax.random.split(jax.random.key(index), 4)
        return LayerWeights(
            attention_norm=ones,
            qkv=Dense(_noise(keys[0], shape=(columns, sizes.hidden))),
            qkv_bias=None,
            out=Dense(_noise(keys[1], shape=(sizes.hidden, mixed))),
            mlp_norm=ones,
            up=Dense(_noise(keys[2], shape=(2 * sizes.intermediate, sizes.hidden))),
            down=Dense(_noise(keys[3], shape=(sizes.hidden, sizes.intermediate))),
        )

    return tuple(layer(index) for index in range(sizes.layers))


def draw_call(
    case: Case, sizes: Sizes, layers: tuple[LayerWeights, ...]
) -> DecoderStack:
    """Every row half a page beyond its context, its pages scattered.

    Steps have more tokens than their prompt. At 1,024 tokens 32 warps a row and head
    take two turns, and layers 0.6 to 1.3 % less than with 24; at 1,032 they are level,
    and the steps to 1,088 take longer.
    """
    width = -(-case.max_model_len // PAGE_SIZE)
    random = np.random.default_rng(0)
    table = random.permutation(case.batch * width).reshape(case.batch, width)
    lengths = jnp.full(case.batch, case.context + PAGE_SIZE // 2, jnp.int32)
    kv = jnp.broadcast_to(
        _noise(
            jax.random.key(0),
            shape=(1, 1, 2, PAGE_SIZE, sizes.kv_heads, sizes.head_dim),
        ),
        (table.size, sizes.layers, 2, PAGE_SIZE, sizes.kv_heads, sizes.head_dim),
    )
    half = sizes.head_dim // 2
    return DecoderStack(
        _noise(jax.random.key(1), shape=(case.batch, sizes.hidden)),
        KVCache.page_major(kv),
        PageView.decoding(jnp.asarray(table, jnp.int32), lengths),
        jnp.asarray(1e4 ** -(np.arange(half) / half), jnp.float32),
        layers,
        spec=spec_of(sizes),
    )


def spec_of(sizes: Sizes) -> StackSpec:
    """The spec of a Llama."""
    return StackSpec(
        windows=(None,) * sizes.layers,
        scale=sizes.head_dim**-0.5,
        soft_cap=None,
        interleaved=False,
        epsilon=1e-5,
        scale_offset=0.0,
        activation="silu",
    )


def attention_call(case: Case, sizes: Sizes) -> attention_config.Call:
    """What attention's cut depends on."""
    return attention_config.Call(case.batch, sizes.kv_heads, case.max_model_len)


def attention_cuts(case: Case, sizes: Sizes) -> list[attention_config.LaunchConfig]:
    """Cuts of attention that leave no multiprocessor without work."""
    call = attention_call(case, sizes)
    return [
        cut
        for cut in attention_config.candidates(call)
        if 48 <= cut.slots * cut.splits <= max(400, call.pairs)
    ]


def product_cuts(rows: int, weight: Weight, *, gated: bool) -> list[tuple[int, ...]]:
    """Cuts of one product: shapes of blocks, and how much their rings hold."""
    cuts: list[tuple[int, ...]] = []
    shapes = itertools.product((1, 2), (1, 2), (48, 56, 64), (1, 2), RINGS)
    for tiles, boxes, tile_rows, splits, ring in shapes:
        flat = matmul_config.FlatConfig(tiles, boxes, tile_rows, splits, 1)
        stages = [
            count
            for count in range(1, matmul_config.MAX_STAGES + 1)
            if dataclasses.replace(flat, stages=count).shared_bytes(rows) <= ring
        ]
        blocks = -(-weight.shape[0] // (tiles * tile_rows)) * splits
        if len(stages) < 2 or (gated and tiles == 1) or not 60 <= blocks <= 1100:
            continue
        on_one = min(SHARED_BYTES // ring, -(-blocks // NUM_SMS))
        cut = dataclasses.astuple(dataclasses.replace(flat, stages=len(stages)))
        if on_one * ring >= LEAST_IN_FLIGHT and cut not in cuts:
            cuts.append(cut)
    return cuts


class Bench:
    """One case; the KV array is made once and travels from call to call."""

    def __init__(self, case: Case, layers: tuple[LayerWeights, ...]) -> None:
        self.case = case
        self.sizes = Sizes()
        self.call = draw_call(case, self.sizes, layers)

    def default(self) -> Cuts:
        """What the package would do."""
        attention = attention_call(self.case, self.sizes)
        return config.choose(self.case.batch, attention, self.call.layers[0])

    def starts(self) -> list[tuple[str, Cuts]]:
        """The default; all products by A; all by B, from where the search begins.

        A kernel of A's many small blocks and one of B's few large ones leave each other
        little room, so a search that changes one product at a time would never change
        all.
        """
        default = self.default()
        gemv = dataclasses.replace(default, products=GEMV * len(PRODUCTS))
        flat = default
        for name in PRODUCTS:
            n, k = getattr(self.call.layers[0], name).shape
            cut = matmul_config.flat_config(self.case.batch, n, k, gated=name == "up")
            flat = with_part(flat, name, dataclasses.astuple(cut))
        starts = [("default", default), ("gemv", gemv), ("flat", flat)]
        few = self.case.batch <= matmul_config.MAX_GEMV_M
        return starts if few else [starts[0], starts[2]]

    def microseconds(self, cuts: Cuts) -> float:
        """Median of one chain, several of which follow each other in a program."""

        @partial(jax.jit, donate_argnums=0)
        def run(kv: KVCache, rest: DecoderStack) -> tuple[Array, KVCache]:
            x = rest.x
            for _ in range(CHAINS):
                call = dataclasses.replace(rest, x=x, kv=kv)
                x, kv, _ = cuda.run_cut(call, cuts)
            return x, kv

        kv, rest = self.call.kv, dataclasses.replace(self.call, kv=None)
        out, kv = run(kv, rest)
        jax.block_until_ready(out)
        times: list[float] = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(CALLS):
                out, kv = run(kv, rest)
            jax.block_until_ready(out)
            times.append((time.perf_counter() - start) / (CALLS * CHAINS) * 1e6)
        self.call = dataclasses.replace(rest, kv=kv)
        return round(statistics.median(times), 1)

    def candidates(self, part: str) -> list[Any]:
        """What to try for attention, or for one product."""
        if part == "attention":
            return attention_cuts(self.case, self.sizes)
        weight = getattr(self.call.layers[0], part)
        return product_cuts(self.case.batch, weight, gated=part == "up")


def with_part(cuts: Cuts, part: str, cut: Any) -> Cuts:
    """`cuts` with one part cut otherwise."""
    if part == "attention":
        return dataclasses.replace(cuts, attention=cut)
    products = list(cuts.products)
    at = PRODUCTS.index(part) * len(GEMV)
    products[at : at + len(GEMV)] = cut
    return dataclasses.replace(cuts, products=tuple(products))


def descend(bench: Bench, parts: list[str], *, keep: int) -> list[dict[str, Any]]:
    """Cuts one part after the other as is fastest; then again, among the best few."""
    starts = bench.starts()
    rows = [_row(bench, name, None, bench.microseconds(c)) for name, c in starts]
    best, least = starts[-1][1], rows[-1]["us"]
    print(*((row["part"], row["us"]) for row in rows), flush=True)
    few: dict[str, list[Any]] = {}
    for sweep in range(2):
        for part in parts:
            tried = few.get(part) or bench.candidates(part)
            timed = [(bench.microseconds(with_part(best, part, c)), c) for c in tried]
            timed.sort(key=lambda pair: pair[0])
            few[part] = [cut for _, cut in timed[:keep]]
            rows += [_row(bench, part, cut, us, sweep) for us, cut in timed]
            if timed[0][0] < least:
                least, best = timed[0][0], with_part(best, part, timed[0][1])
            print(f"{bench.case.batch}x{bench.case.context} {part}:", *timed[:5])
    rows.append(_row(bench, "best", dataclasses.astuple(best), least))
    print(
        f"{bench.case.batch}x{bench.case.context}: {rows[0]['us']} -> {least}, {best}"
    )
    return rows


def _row(
    bench: Bench, part: str, cut: Any, us: float, sweep: int = 0
) -> dict[str, Any]:
    if dataclasses.is_dataclass(cut) and not isinstance(cut, type):
        cut = dataclasses.astuple(cut)
    return {
        "batch": bench.case.batch,
        "context": bench.case.context,
        "part": part,
        "cut": cut,
        "sweep": sweep,
        "us": us,
        **results.provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = results.RESULTS / results.device_slug() / "decoder_stack.json"
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--parts", default="qkv,out,up,down,attention")
    parser.add_argument("--keep", type=int, default=6, help="for the second sweep")
    parser.add_argument("--out", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    device.claim_memory(0.9)
    layers = draw_layers(Sizes())
    rows: list[dict[str, Any]] = []
    for case in parse_cases(arguments.cases, steps=PAGE_SIZE):
        parts = arguments.parts.split(",")
        rows += descend(Bench(case, layers), parts, keep=arguments.keep)
        results.write(arguments.out, rows)
