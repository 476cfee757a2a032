"""The chain of a decode step's layers, cut in different ways.

What is fastest alone need not be fastest in a chain whose kernels overlap: a kernel's
blocks take room that its successor's first loads would use. This measures the whole
chain, with each of its parts cut otherwise in turn, and prints the fastest.
"""

import argparse
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.cases import Case, parse_cases
from fdjax import device
from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack import LayerWeights, StackSpec, config, cuda
from fdjax.kernels.decoder_stack.config import GEMV, Cuts
from fdjax.kernels.matmul import config as matmul_config
from fdjax.notation import Array

PAGE_SIZE = 16
PRODUCTS = ("qkv", "out", "up", "down")
CASES = "1x1024,8x1024,64x1024,1x32768,8x32768"
CALLS = 10


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
            qkv=_noise(keys[0], shape=(columns, sizes.hidden)),
            qkv_bias=None,
            out=_noise(keys[1], shape=(sizes.hidden, mixed)),
            mlp_norm=ones,
            up=_noise(keys[2], shape=(2 * sizes.intermediate, sizes.hidden)),
            down=_noise(keys[3], shape=(sizes.hidden, sizes.intermediate)),
        )

    return tuple(layer(index) for index in range(sizes.layers))


def draw_operands(case: Case, sizes: Sizes) -> tuple[Array, ...]:
    """Every row at the end of its context, its pages scattered."""
    width = -(-case.max_model_len // PAGE_SIZE)
    random = np.random.default_rng(0)
    table = random.permutation(case.batch * width).reshape(case.batch, width)
    positions = np.full(case.batch, case.context - 1)
    slots = table[:, positions[0] // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    kv = jnp.broadcast_to(
        _noise(
            jax.random.key(0),
            shape=(1, 1, 2, PAGE_SIZE, sizes.kv_heads, sizes.head_dim),
        ),
        (table.size, sizes.layers, 2, PAGE_SIZE, sizes.kv_heads, sizes.head_dim),
    )
    integers = (positions, slots, table, positions + 1)
    half = sizes.head_dim // 2
    return (
        _noise(jax.random.key(1), shape=(case.batch, sizes.hidden)),
        kv,
        *(jnp.asarray(a, jnp.int32) for a in integers),
        jnp.asarray(1e4 ** -(np.arange(half) / half), jnp.float32),
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


def attention_variants(case: Case, sizes: Sizes) -> Iterator[attention_config.Config]:
    """Cuts of attention that leave no multiprocessor without work."""
    call = attention_config.Call(case.batch, sizes.kv_heads, case.max_model_len)
    for cut in attention_config.candidates(call):
        blocks = case.batch * sizes.kv_heads // cut.heads_per_block * cut.splits
        if 48 <= blocks <= max(400, case.batch * sizes.kv_heads):
            yield cut


def product_variants(rows: int, name: str) -> Iterator[tuple[int, ...]]:
    """Cuts of one product."""
    if rows <= matmul_config.MAX_GEMV_M:
        yield GEMV
    for flat in matmul_config.candidates(rows):
        if name == "up" and flat.tiles == 1:
            continue
        yield dataclasses.astuple(flat)


class Bench:
    """One case; the KV array is made once and travels from call to call."""

    def __init__(self, case: Case, layers: tuple[LayerWeights, ...]) -> None:
        self.case = case
        self.sizes = Sizes()
        self.layers = layers
        self.operands = draw_operands(case, self.sizes)
        self.spec = spec_of(self.sizes)

    def default(self) -> Cuts:
        """What the package would do."""
        return config.choose(
            self.case.batch,
            self.sizes.kv_heads,
            self.case.max_model_len,
            self.layers[0],
        )

    def microseconds(self, cuts: Cuts) -> tuple[float, float]:
        """Of one chain: median, and spread."""

        @partial(jax.jit, donate_argnums=0)
        def run(
            kv: Array, rest: tuple[Array, ...], layers: tuple[LayerWeights, ...]
        ) -> tuple[Array, Array]:
            x, *others = rest
            return cuda.call((x, kv, *others), layers, spec=self.spec, cuts=cuts)

        x, kv, *others = self.operands
        rest = (x, *others)
        out, kv = run(kv, rest, self.layers)
        jax.block_until_ready(out)
        times: list[float] = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(CALLS):
                out, kv = run(kv, rest, self.layers)
            jax.block_until_ready(out)
            times.append((time.perf_counter() - start) / CALLS * 1e6)
        self.operands = (x, kv, *others)
        median = statistics.median(times)
        return median, (max(times) - min(times)) / median

    def variants(self) -> Iterator[tuple[str, Cuts]]:
        """The default, then one part after the other cut otherwise."""
        default = self.default()
        yield "default", default
        for attention in attention_variants(self.case, self.sizes):
            cut = dataclasses.astuple(attention)
            yield f"attention {cut}", dataclasses.replace(default, attention=attention)
        for index, name in enumerate(PRODUCTS):
            for cut in product_variants(self.case.batch, name):
                products = list(default.products)
                products[index * 5 : index * 5 + 5] = cut
                yield (
                    f"{name} {cut}",
                    dataclasses.replace(default, products=tuple(products)),
                )


def search(bench: Bench, *, only: str) -> list[dict[str, Any]]:
    """Measures every variant whose name begins with one of `only`."""
    rows: list[dict[str, Any]] = []
    for name, cuts in bench.variants():
        if only and not name.startswith(("default", *only.split(","))):
            continue
        us, spread = bench.microseconds(cuts)
        rows.append(
            {
                "batch": bench.case.batch,
                "context": bench.case.context,
                "variant": name,
                "us": round(us, 1),
                "spread": round(spread, 4),
                **results.provenance(),
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """The default, and the three fastest of each part."""
    head = rows[0]
    print(f"{head['batch']}x{head['context']}: default {head['us']} us")
    for part in ("attention", *PRODUCTS):
        best = sorted(
            (r for r in rows if r["variant"].startswith(part)), key=lambda r: r["us"]
        )
        print("  ", *(f"{r['variant']}: {r['us']}" for r in best[:4]), sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = results.RESULTS / results.device_slug() / "decoder_stack.json"
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--only", default="", help="parts: attention,qkv,out,up,down")
    parser.add_argument("--out", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    device.claim_memory(0.9)
    layers = draw_layers(Sizes())
    rows: list[dict[str, Any]] = []
    for case in parse_cases(arguments.cases, steps=PAGE_SIZE):
        found = search(Bench(case, layers), only=arguments.only)
        show(found)
        rows += found
        results.write(arguments.out, rows)


if __name__ == "__main__":
    main()
