"""Writes the results of the README and the docs from the JSON in `results/`.

`python -m benchmarks.report` rewrites every block between its markers, and draws every
chart; a test holds the files to what it would write.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import (
    attention_chart,
    attention_tables,
    beam_charts,
    beam_memory,
    beam_tables,
    breakdown,
    budget_tables,
    charts,
    kernel_tables,
    load_charts,
    memory_chart,
    memory_tables,
    stack_tables,
    tables,
    throughput_charts,
)
from benchmarks.results import RESULTS

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
H200 = RESULTS / "nvidia-h200"
H100 = RESULTS / "nvidia-h100-80gb-hbm3"
BEGIN = "<!-- results: {} -->"
END = "<!-- /results -->"


def load_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The results of a file; none where the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else []


def of(name: str) -> list[dict[str, Any]]:
    """The results of a program on an H200."""
    return load_rows(H200 / f"{name}.json")


def of_readme(heading: str) -> str:
    """The table below a heading of the README, with links as pages of the docs have."""
    _, found, rest = (REPOSITORY / "README.md").read_text().partition(f"## {heading}\n")
    if not found:
        raise ValueError(f"the README has no {heading}")
    lines = rest.partition("\n## ")[0].splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    return table.replace("](docs/", "](")


def _shown(table: str, charts: Mapping[str, str]) -> str:
    """A table and the charts below it: files in `docs/plots`, and their words."""
    images = (f"![{words}](plots/{name})" for name, words in charts.items())
    return "\n\n".join((table, *images))


ONLINE = {
    "load-throughput-h200.svg": "requests a second over those asked for, beside vLLM",
    "load-first-tokens-h200.svg": "by when first tokens have come, beside vLLM",
    "load-gaps-h200.svg": "the distribution of gaps between tokens, beside vLLM",
}
"""Charts of loads, and what is read aloud."""
MEMORY = {"memory-h200.svg": "the longest sequences of 80 GiB, in three ways"}

BLOCKS: dict[str, Callable[[], str]] = {
    "decode": lambda: tables.decode(of("decode")),
    "beside": lambda: tables.beside(of("decode"), of("peers")),
    "whole": lambda: tables.whole(
        *map(of, ("serving", "start", "trace_decode", "peers"))
    ),
    "online": lambda: _shown(tables.online(of("serving_online")), ONLINE),
    "over_http": lambda: tables.over_http(of("serving_http")),
    "budgets": lambda: budget_tables.budgets(of("budgets")),
    "models": lambda: tables.by_batch(of("decode_models"), "model"),
    "ablation": lambda: tables.by_batch(of("ablation"), "variant"),
    "memory": lambda: _shown(memory_tables.cases(of("memory")), MEMORY),
    "memory_rows": lambda: memory_tables.rows(of("memory_rows")),
    "cpu": lambda: tables.on_a_cpu(load_rows(RESULTS / "cpu" / "decode.json")),
    "decode_attention": lambda: attention_tables.attention(of("decode_attention")),
    "decode_attention_pallas": lambda: attention_tables.pallas(
        of("decode_attention_pallas")
    ),
    "attention": lambda: attention_tables.unequal(of("attention")),
    "invariant": lambda: attention_tables.invariant(of("attention_invariance")),
    "decode_in_turns": lambda: attention_tables.in_turns(of("decode_in_turns")),
    "shared_steps": lambda: attention_tables.shared_steps(of("shared_steps")),
    "prefill_attention": lambda: attention_tables.prefills(of("attention")),
    "ragged_attention": lambda: stack_tables.peers(of("ragged_attention")),
    "ragged_device": lambda: stack_tables.both_caches(of("ragged_device")),
    "sgl_jax": lambda: stack_tables.inside_sgl_jax(of("sgl_jax")),
    "tunix": lambda: stack_tables.rollouts(of("tunix_rollouts")),
    "matmul": lambda: kernel_tables.gemms(of("matmul")),
    "draw": lambda: kernel_tables.draws(of("draw")),
    "beams": lambda: beam_tables.steps(of("beams")),
    "beams_many": lambda: beam_tables.throughput(of("beams")),
    "page_move": lambda: kernel_tables.moves(of("page_move")),
    "add_norm": lambda: kernel_tables.traced(of("timeline"), "add_norm"),
    "embedding": lambda: kernel_tables.traced(of("timeline"), "embedding"),
    "beam_attention": lambda: beam_tables.attention(of("beams")),
    "layer_program": lambda: kernel_tables.chains(
        load_rows(H100 / "layer_program.json")
    ),
    "readme_models": lambda: of_readme("Models"),
    "readme_hardware": lambda: of_readme("Hardware"),
    "readme_features": lambda: of_readme("Features"),
}
"""What makes each block, by the name in its marker."""

PAGES = {
    "README.md": ("beside",),
    "docs/index.md": (
        "beside",
        "readme_models",
        "readme_hardware",
        "readme_features",
    ),
    "docs/performance.md": (
        "decode",
        "beside",
        "whole",
        "online",
        "over_http",
        "models",
        "ablation",
        "memory",
        "memory_rows",
        "cpu",
    ),
    "docs/serving.md": ("budgets",),
    "docs/stacks.md": ("ragged_attention", "ragged_device", "sgl_jax", "tunix"),
    "docs/beam-search.md": ("beams", "beams_many"),
    "docs/kernels/attention.md": ("attention", "shared_steps", "invariant"),
    "docs/kernels/prefill_attention.md": ("prefill_attention",),
    "docs/kernels/decode_attention.md": (
        "decode_attention",
        "decode_in_turns",
        "decode_attention_pallas",
    ),
    "docs/kernels/beam_attention.md": ("beam_attention",),
    "docs/kernels/layer_program.md": ("layer_program",),
    "docs/kernels/add_norm.md": ("add_norm",),
    "docs/kernels/embedding.md": ("embedding",),
    "docs/kernels/matmul.md": ("matmul",),
    "docs/kernels/draw.md": ("draw",),
    "docs/kernels/page_move.md": ("page_move",),
}
"""The blocks of each page."""

CHARTS: dict[str, Callable[[], str]] = {
    "docs/plots/decode-h200.svg": lambda: charts.decode(of("decode"), of("peers")),
    "docs/plots/load-h200.svg": lambda: charts.load(of("serving_online")),
    "docs/plots/load-throughput-h200.svg": lambda: load_charts.throughput(
        of("serving_online")
    ),
    "docs/plots/load-first-tokens-h200.svg": lambda: load_charts.distribution(
        of("serving_online"), "ttft_ms"
    ),
    "docs/plots/load-gaps-h200.svg": lambda: load_charts.distribution(
        of("serving_online"), "gap_ms"
    ),
    "docs/plots/layer-h200.svg": lambda: charts.layer(of("timeline")),
    "docs/plots/breakdown-h200.svg": lambda: breakdown.chart(
        of("breakdown"), H200.name
    ),
    "docs/plots/highest-h200.svg": lambda: throughput_charts.chart(
        of("highest_throughput"), H200.name
    ),
    "docs/plots/batches-h200.svg": lambda: throughput_charts.batches(
        of("highest_throughput"), H200.name
    ),
    "docs/plots/attention.svg": attention_chart.chart,
    "docs/plots/memory-h200.svg": lambda: memory_chart.chart(of("memory"), H200.name),
    "docs/plots/beams-memory.svg": lambda: beam_memory.chart(beam_memory.memory()),
} | {
    f"docs/plots/{name}": draw
    for name, draw in beam_charts.charts(of("beams"), H200.name).items()
}
"""What draws each chart, by its file."""


def rewritten(text: str, name: str, block: str) -> str:
    """`text` with `block` between the markers of its name.

    Raises:
        ValueError: the markers are missing or in the wrong order.
    """
    begin = BEGIN.format(name)
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the markers {begin} and {END} are missing")
    return f"{before}{begin}\n{block}\n{END}{after}"


def page(name: str, text: str) -> str:
    """A page with all of its blocks as the results have them."""
    for block in PAGES[name]:
        text = rewritten(text, block, BLOCKS[block]())
    return text


def main() -> None:
    """Rewrites the blocks of all pages, and draws the charts."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name in PAGES:
        file = REPOSITORY / name
        file.write_text(page(name, file.read_text()))
    for name, draw in CHARTS.items():
        (REPOSITORY / name).parent.mkdir(exist_ok=True)
        (REPOSITORY / name).write_text(draw())


if __name__ == "__main__":
    main()
