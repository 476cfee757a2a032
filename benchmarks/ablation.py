"""A decode step without each technique of FlashDecoding++Next (the paper's Table II).

The same greedy steps, launched ahead as the engine does, with the asynchronous softmax
or the synchronised one, with our GEMMs or XLA's dots, and with all layers
as one chain or operation by operation: XLA's dots cannot join the chain. Keys and
values are random; nothing is prefilled, and no score leaves the bounds.
"""

import argparse
import contextlib
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Generator
from typing import Any

import jax

from benchmarks import needs, results
from benchmarks.cases import parse_cases
from benchmarks.decode import Bench
from fdjax import device
from fdjax.engine.programs import Programs
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.gated_matmul import OP as GATED_MATMUL
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.paged import KVCache
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.notation import Array
from fdjax.serve.loading import load_decoder
from fdjax.serve.setup import Settings

CASES = "1x1024,8x1024,16x1024,32x1024,64x1024"
# Random scores stay far inside.
UNIFIED = UnifiedMax(0.0, -40.0, 40.0)


@dataclasses.dataclass(frozen=True)
class Variant:
    """Which techniques are on."""

    name: str
    asynchronous: bool = True
    flat: bool = True
    chain: bool = True

    @contextlib.contextmanager
    def chosen(self) -> Generator[None]:
        """Forces the implementations that are not this variant's own choice."""
        with contextlib.ExitStack() as forced:
            if not self.chain:
                forced.enter_context(LAYER_PROGRAM.using("reference"))
            if not self.flat:
                forced.enter_context(MATMUL.using("reference"))
                forced.enter_context(GATED_MATMUL.using("reference"))
            yield


VARIANTS = (
    Variant("everything"),
    Variant("no_asynchronous_softmax", asynchronous=False),
    Variant("operations", chain=False),
    Variant("operations_no_asynchronous_softmax", asynchronous=False, chain=False),
    Variant("operations_no_flat_gemm", flat=False, chain=False),
    Variant("operations_neither", asynchronous=False, flat=False, chain=False),
)


@functools.partial(jax.jit, donate_argnums=0)
def _noise(kv: KVCache) -> KVCache:
    """Random keys and values, one layer at a time: float32 noise of all is too much."""

    def fill(layer: Array, kv: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(0), layer)
        noise = jax.random.normal(key, (kv.shape[0], *kv.shape[2:]), kv.dtype)
        return kv.at[:, layer].set(noise)

    array = jax.lax.fori_loop(0, kv.num_layers, fill, kv.array)
    return kv.with_array(array)


def measure(bench: Bench, variant: Variant, *, repeats: int) -> dict[str, Any]:
    """One result object."""
    with variant.chosen():
        times = bench.seconds_per_step(repeats)
    median = statistics.median(times)
    return {
        "variant": variant.name,
        "batch": bench.case.batch,
        "context": bench.case.context,
        "ms_per_step": round(median * 1e3, 4),
        "spread": round((max(times) - min(times)) / median, 4),
        **results.provenance(),
    }


def filled(bench: Bench) -> Bench:
    """With random keys and values, where nothing is prefilled."""
    bench.progress = dataclasses.replace(bench.progress, kv=_noise(bench.progress.kv))
    return bench


def main() -> None:
    """Measures every variant of every case and writes `ablation.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    device.claim_memory(0.93)
    needs.gpu()
    out = arguments.out or results.RESULTS / results.device_slug() / "ablation.json"
    rows: list[dict[str, Any]] = []
    for asynchronous in (True, False):
        settings = Settings.of(
            arguments.model,
            dtype="bfloat16",
            softmax=UNIFIED if asynchronous else "synchronised",
        )
        model = load_decoder(settings, random_weights=True)
        programs = Programs(model, steps_per_launch=1)
        for case in parse_cases(arguments.cases, steps=arguments.steps):
            bench = filled(Bench(model, programs, case))
            for variant in VARIANTS:
                if variant.asynchronous == asynchronous:
                    row = measure(bench, variant, repeats=arguments.repeats)
                    rows.append({"model": pathlib.Path(arguments.model).stem, **row})
                    print(rows[-1], flush=True)
                    results.write(out, rows)
            del bench
        del model, programs


if __name__ == "__main__":
    main()
