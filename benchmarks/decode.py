"""Prefill and decode of whole batches, apart: milliseconds, bytes, and the ceiling.

A case is `batch x context`: random prompts of `context` tokens are prefilled through
the engine's own programs into pages in random order, then decode steps run with
sampling, launched ahead of their results as the engine does. Each repeat starts again
at `context`.
"""

import argparse
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import needs, results
from benchmarks.cases import Case, parse_cases
from benchmarks.transformers_peer import Peer
from fdjax import device
from fdjax.engine.buckets import PREFILL_ROWS
from fdjax.engine.programs import Programs
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import plan_of
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import Arrivals, RowTokens
from fdjax.generate.sampling_state import SamplingState, init_state
from fdjax.generate.softmax_counts import SoftmaxCounts
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.memory.kv import KVLayout
from fdjax.models.decoder import Decoder
from fdjax.models.weights import parameter_bytes, parameter_shapes
from fdjax.serve.loading import STEPS_PER_LAUNCH, load_decoder
from fdjax.serve.setup import MAX_BATCHED_TOKENS, Settings, kind_of_platform

# Of repeats of a prefill; one of 8 x 32,768 takes 11 s on an H200.
LONG_SECONDS = 20.0
PAGE_SIZE = 16
CASES = "1x1024,8x1024,64x1024,256x1024,1x32768,8x32768"
GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


def prefill_calls(case: Case) -> Iterator[tuple[slice, int, int]]:
    """Rows, first token and end of each prefill call: as the engine would cut them."""
    room = MAX_BATCHED_TOKENS[kind_of_platform()]
    count = max(1, min(case.batch, room // case.context, PREFILL_ROWS))
    for first in range(0, case.batch, count):
        rows = slice(first, min(first + count, case.batch))
        for start in range(0, case.context, room):
            yield rows, start, min(start + room, case.context)


class Bench:
    """One case on the device, ready to be measured.

    Args:
        model: the decoder, loaded.
        programs: its compiled programs.
        case: what to measure.
        layout: of the KV array; `None`: what the rows fill. They have its first pages.
    """

    def __init__(
        self,
        model: Decoder,
        programs: Programs,
        case: Case,
        layout: KVLayout | None = None,
    ) -> None:
        self.case = case
        self.programs = programs
        self.plan = plan_of([GREEDY])
        rows = layout_of(model, case)
        self.layout = layout or rows
        self._config = model.config
        prompts = case.prompts(model.config.embedding.vocab_size)
        self.prompts = jax.device_put(np.asarray(prompts, np.int32))
        pages = np.random.default_rng(0).permutation(rows.num_pages)
        table = pages.reshape(case.batch, -1).astype(np.int32)
        steps = np.full(case.batch, programs.steps_per_launch, np.int32)
        there, self.steps = jax.device_put((table, steps))
        self.pages = RowPages.all_of(there)
        state = self._state(case.batch)
        lengths = jnp.zeros(case.batch, jnp.int32)
        self.rules = state.rules
        self.progress = GenerationProgress(
            self.layout.allocate(),
            lengths,
            jnp.zeros_like(lengths),
            state.progress,
            SoftmaxCounts.of(model.config),
            there,
        )

    def _state(self, num_rows: int) -> SamplingState:
        """Greedy rows at their first token; nothing else is asked of them."""
        return init_state(
            [GREEDY] * num_rows,
            [()] * num_rows,
            plan=self.plan,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            default_seeds=[0] * num_rows,
            num_rows=num_rows,
        )

    def prefill(self) -> None:
        """Runs all prompts, samples their first tokens, and waits for the last."""
        nobody = jnp.zeros(self.case.batch, jnp.int32)
        for part, start, stop in prefill_calls(self.case):
            count = part.stop - part.start
            call = RowTokens(
                self.prompts[part, start:stop].reshape(-1),
                nobody.at[part].set(start),
                nobody.at[part].set(stop),
                jnp.arange(part.start, part.stop, dtype=jnp.int32),
                nobody.astype(bool),
                self.pages,
            )
            self.progress, hidden = self.programs.extend(self.progress, call)
            if stop < self.case.context:
                continue
            arrivals = Arrivals(
                self._state(count),
                jnp.arange(part.start, part.stop, dtype=jnp.int32),
                jnp.full(count, stop, jnp.int32),
            )
            self.rules, self.progress, _ = self.programs.sample(
                hidden,
                call.decodes,
                arrivals,
                self.rules,
                self.progress,
                plan=self.plan,
            )
        jax.block_until_ready(self.progress.lengths)

    def rewind(self) -> None:
        """Puts every row back to the end of its prompt."""
        lengths = jnp.full(self.case.batch, self.case.context, jnp.int32)
        fresh = jax.tree.map(jnp.zeros_like, self.progress.sampling)
        self.progress = dataclasses.replace(
            self.progress, lengths=lengths, sampling=fresh
        )
        jax.block_until_ready(self.progress.lengths)

    def decode(self) -> None:
        """Launches all steps without waiting, then waits for the last."""
        for _ in range(self.case.steps // self.programs.steps_per_launch):
            self.progress, _ = self.programs.decode(
                self.rules,
                self.progress,
                self.pages,
                self.steps,
                plan=self.plan,
                all_steps=self.programs.steps_per_launch > 1,
            )
        jax.block_until_ready(self.progress.tokens)

    def softmax(self) -> dict[str, Any]:
        """The scheme, and which share of all query heads was computed again."""
        unified, counts = self._config.unified, self.progress.softmax
        if unified is None or counts is None:
            return {"softmax": "synchronised"}
        statistics = counts.read(num_heads=self._config.num_heads)
        return {
            "softmax": f"phi {unified.phi:g}, {unified.low:g} to {unified.high:g}",
            "recomputed": statistics.rate,
        }

    def seconds_of_prefill(self, repeats: int) -> list[float]:
        """Of several runs; of two, if more would take too long."""
        first = timed(self.prefill, repeats=1)
        many = first[0] * repeats < LONG_SECONDS
        return first + timed(self.prefill, repeats=repeats - 1 if many else 1)

    def seconds_per_step(self, repeats: int) -> list[float]:
        """Of several runs of all steps, after one that compiles them."""
        self.rewind()
        self.decode()
        seconds: list[float] = []
        for _ in range(repeats):
            self.rewind()
            seconds += timed(self.decode, repeats=1)
        return [total / self.case.steps for total in seconds]


def measure(
    model: Decoder, programs: Programs, case: Case, *, name: str, repeats: int
) -> dict[str, Any]:
    """One result object."""
    bench = Bench(model, programs, case)
    bench.prefill()
    prefill = statistics.median(bench.seconds_of_prefill(repeats))
    per_step = bench.seconds_per_step(repeats)
    median = statistics.median(per_step)
    gigabytes = step_gigabytes(model, bench.layout, case)
    return {
        "model": name,
        "batch": case.batch,
        "context": case.context,
        "ms_per_step": round(median * 1e3, 4),
        "tokens_per_s": round(case.batch / median, 1),
        "prefill_ms": round(prefill * 1e3, 2),
        "gigabytes": round(gigabytes, 4),
        **results.share_of_ceiling(gigabytes / median),
        "spread": round((max(per_step) - min(per_step)) / median, 4),
        **bench.softmax(),
        **results.provenance(),
    }


def step_gigabytes(model: Decoder, layout: KVLayout, case: Case) -> float:
    """The fewest bytes a step must read: weights once, and the KV of every row.

    Of the token embedding only the rows of the batch count, unless the head is tied
    to it and reads it whole.
    """
    config = model.config
    dtype = jnp.dtype(layout.dtype)
    weights = parameter_bytes(parameter_shapes(config, dtype=dtype))
    if not config.embedding.tied:
        table = config.embedding.vocab_size * config.hidden_size * dtype.itemsize
        weights -= table
    tokens = case.batch * (case.context + case.steps / 2)
    return (weights + tokens * layout.page_bytes / layout.page_size) / 1e9


def layout_of(model: Decoder, case: Case) -> KVLayout:
    """The KV array that a case's rows fill at its end."""
    pages_per_row = -(-case.max_model_len // PAGE_SIZE)
    return model.config.kv_layout(
        num_pages=case.batch * pages_per_row,
        page_size=PAGE_SIZE,
        dtype=model.embed.weight.get_value().dtype,
    )


def timed(run: Callable[[], None], *, repeats: int) -> list[float]:
    """Seconds of each of some runs."""
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measures the cases asked for and writes `decode.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument(
        "--softmax", default="auto", help="as `fdjax generate` takes it"
    )
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps-per-launch", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument(
        "--beside-transformers",
        action="store_true",
        help="measure the same cases with transformers, in this process (needs torch)",
    )
    arguments = parser.parse_args()
    device.claim_memory(0.93)
    needs.gpu_for(arguments.model)
    settings = Settings.of(
        arguments.model,
        dtype=arguments.dtype,
        softmax=UnifiedMax.read(arguments.softmax) or arguments.softmax,
    )
    path = pathlib.Path(arguments.model)
    model = load_decoder(settings, random_weights=path.suffix == ".json")
    steps = arguments.steps_per_launch or STEPS_PER_LAUNCH[kind_of_platform()]
    programs = Programs(model, steps_per_launch=steps)
    out = arguments.out or results.RESULTS / results.device_slug() / "decode.json"
    peer = Peer(settings.folder) if arguments.beside_transformers else None
    rows: list[dict[str, Any]] = []
    for case in parse_cases(arguments.cases, steps=arguments.steps):
        row = measure(model, programs, case, name=path.stem, repeats=arguments.repeats)
        rows.append(row)
        print(row, flush=True)
        if peer is not None:
            beside = peer.measure(case, repeats=arguments.repeats)
            same = {key: row[key] for key in ("model", "batch", "context", "date")}
            rows.append({**same, **beside, "system": peer.version})
            print(rows[-1], flush=True)
        results.write(out, rows)


if __name__ == "__main__":
    main()
