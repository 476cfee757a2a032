"""How many rows fit by where activations lie, and what more of them bring.

FlashDecoding++Next's Table II, "w/o Memory". Rows of one length share a budget with
the weights, in four ways: prompts in chunks, or all in one call; and what a step needs
in the KV array's end ("lent"), or beside it, each result of a prompt's layers in memory
of its own ("apart"). How many fit is arithmetic, of the engine's own plan. The decode
step is measured at the rows' mean length, with the array lent and with what it needs in
XLA's own buffers, in turns (`memory_steps`); keys and values are random, and nothing is
prefilled. How prompts were cut makes no difference to a step: ways that differ in that
alone have the same time. A batch of more rows than fit has none. Kernels take 4,096
rows at most: no more are said to fit.
"""

import argparse
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks import needs, results
from benchmarks.cases import Case
from benchmarks.memory_plans import most
from benchmarks.memory_steps import Row, borrowing, step_times
from fdjax import device
from fdjax.engine.programs import Programs
from fdjax.engine.workspace import (
    SLACK_BYTES,
    page_workspace_bytes,
    separate_bytes,
    state_bytes,
    workspace_bytes,
)
from fdjax.kernels.attention_plan.shape import MAX_ROWS
from fdjax.memory.kv import KVLayout
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import STEPS_PER_LAUNCH, load_decoder
from fdjax.serve.setup import Settings, kind_of_platform

GIB = 2**30
BATCHES = "1,8,16,32,64,128,256"


@dataclass(frozen=True)
class Way:
    """Where activations lie, and how prompts are cut.

    Attributes:
        name: in the results.
        lent: in the KV array's end; else beside the array.
        chunked: prompts in calls of `max_batched_tokens`; else all in one, even if they
            are more than the engine's calls take.
    """

    name: str
    lent: bool
    chunked: bool


WAYS = (
    Way("chunks_lent", lent=True, chunked=True),
    Way("one_call_lent", lent=True, chunked=False),
    Way("chunks_apart", lent=False, chunked=True),
    Way("one_call_apart", lent=False, chunked=False),
)


@dataclass(frozen=True)
class Lengths:
    """Tokens of each row: of its prompt, and of its output."""

    prompt: int
    output: int

    @property
    def final(self) -> int:
        """At the row's end."""
        return self.prompt + self.output

    @property
    def mean(self) -> int:
        """While it decodes."""
        return self.prompt + self.output // 2


# --- How many rows fit ----------------------------------------------------------------


def rows_that_fit(settings: Settings, lengths: Lengths, budget: int) -> dict[Way, int]:
    """The most rows of each way; where no step borrows, of those with memory apart.

    Args:
        settings: of one row of `lengths.final` tokens.
        lengths: of every row.
        budget: in bytes.
    """
    left = budget - settings.weight_bytes
    layout = settings.widest_layout
    rows = left // (layout.pages_for(lengths.final) * layout.page_bytes)
    rows = max(1, min(rows, MAX_ROWS))

    def needed(way: Way, rows: int) -> int:
        return needed_bytes(way, replace(settings, max_num_seqs=rows), lengths)

    def found(way: Way) -> int:
        of_row = (needed(way, rows) - settings.weight_bytes) // rows
        return most(
            # No kernel takes more.
            lambda n: n <= MAX_ROWS and needed(way, n) <= budget,
            near=min(left // of_row, MAX_ROWS),
        )

    return {way: found(way) for way in WAYS if layout.lent or not way.lent}


def needed_bytes(way: Way, settings: Settings, lengths: Lengths) -> int:
    """What `max_num_seqs` rows need at most: weights, KV array and workspace."""
    config, layout = settings.config, settings.widest_layout
    sizes = {"num_rows": settings.max_num_seqs, "max_model_len": lengths.final}
    page_bytes = layout.page_bytes + page_workspace_bytes(config, layout, **sizes)
    pages = _pages(way, settings, layout, lengths)
    workspace = _workspace(way, settings, lengths)
    return settings.weight_bytes + workspace + pages * page_bytes


def _call_tokens(way: Way, settings: Settings, lengths: Lengths) -> int:
    """Tokens of the largest call with prompts."""
    every = settings.max_num_seqs * lengths.prompt
    return min(every, settings.max_batched_tokens) if way.chunked else every


def _pages(way: Way, settings: Settings, layout: KVLayout, lengths: Lengths) -> int:
    """Of the KV array: at the prompts' last call, or at the last step."""
    rows = settings.max_num_seqs
    prompts, ends = map(layout.pages_for, (lengths.prompt, lengths.final))
    if not way.lent:
        return rows * ends
    lent = borrowing(settings.config, layout, rows=rows, width=ends)
    call = lent.pages("extend", _call_tokens(way, settings, lengths))
    return max(rows * prompts + call, rows * ends + lent.pages("decode", rows))


def _workspace(way: Way, settings: Settings, lengths: Lengths) -> int:
    """What lies beside the KV array: the same in each way, but for activations.

    Those apart come before sampling's temporaries, and share their memory.
    """
    config, dtype, rows = settings.config, settings.dtype, settings.max_num_seqs
    lent = workspace_bytes(
        config,
        dtype=dtype,
        num_tokens=settings.max_batched_tokens,
        num_rows=rows,
        max_model_len=lengths.final,
        page_size=settings.page_size,
        lent=True,
    )
    if way.lent:
        return lent
    tokens = _call_tokens(way, settings, lengths)
    activations = separate_bytes(config, dtype=dtype, num_tokens=tokens)
    slack = SLACK_BYTES if device.platform() == "gpu" else 0
    return max(lent, activations + state_bytes(config, num_rows=rows) + slack)


# --- What they bring ------------------------------------------------------------------

NO_ROOM = {"ms_per_step": None, "tokens_per_s": None, "spread": None}


def measure(
    model: Decoder,
    programs: Programs,
    fitting: Mapping[Way, int],
    batches: Sequence[int],
    *,
    context: int,
    steps: int,
    repeats: int,
) -> Iterator[Row]:
    """Each way's batches and all rows that fit it; what is the same runs once."""
    for batch in sorted({*batches, *fitting.values()} - {0}):
        asked = {
            way: rows
            for way, rows in fitting.items()
            if batch in batches or batch == rows
        }
        case, times = Case(batch, context, steps), dict[bool, Row]()
        lents = {way.lent for way, rows in asked.items() if batch <= rows}
        if lents:
            times = step_times(model, programs, case, lents=lents, repeats=repeats)
        for way, rows in asked.items():
            found = times[way.lent] if batch <= rows else NO_ROOM
            told = {"way": way.name, "rows": rows, "batch": batch}
            yield {**told, "context": context, **found, **results.provenance()}


def _parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--budget-gib", type=float, default=80.0)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each row")
    parser.add_argument("--output", type=int, default=1024, help="tokens of each row")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Writes `memory_rows.json`.

    Args:
        given: of the command line.
    """
    asked = _parsed(given)
    device.claim_memory(0.93)
    needs.gpu_for(asked.model)
    lengths = Lengths(asked.prompt, asked.output)
    settings = Settings.of(asked.model, max_model_len=lengths.final, max_num_seqs=1)
    path = pathlib.Path(asked.model)
    model = load_decoder(settings, random_weights=path.suffix == ".json")
    programs = Programs(model, steps_per_launch=STEPS_PER_LAUNCH[kind_of_platform()])
    folder = results.RESULTS / results.device_slug()
    budget = int(asked.budget_gib * GIB)
    fitting = rows_that_fit(settings, lengths, budget)
    told = {"model": path.stem, "prompt": asked.prompt, "output": asked.output}
    told["budget_gib"] = asked.budget_gib
    out = asked.out or folder / "memory_rows.json"
    rows: list[Row] = []
    for row in measure(
        model,
        programs,
        fitting,
        [int(one) for one in asked.batches.split(",")],
        context=lengths.mean,
        steps=asked.steps,
        repeats=asked.repeats,
    ):
        rows.append({**told, **row})
        print(rows[-1], flush=True)
        results.write(out, rows)


if __name__ == "__main__":
    main()
