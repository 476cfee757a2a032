"""`fdjax inspect`'s report as tables."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdjax.cli.picture import picture
from fdjax.cli.report import Memory, Model, Report
from fdjax.memory.plan import gib

# Wide enough for every table where the output goes to a file.
_FILE_WIDTH = 100
_TITLE_WIDTH = 32


def show(report: Report) -> None:
    """Writes a report to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    print_all(
        _summary(report.model, report),
        _parameters(report),
        _memory(report.memory, report.device),
        _kernels(report),
    )


def print_all(*tables: Table) -> None:
    """Writes tables to stdout, all at once.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        for one in tables:
            console.print(one)
    sys.stdout.write(capture.get())
    sys.stdout.flush()


def titled(title: str) -> Table:
    """An empty table."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    table.min_width = _TITLE_WIDTH
    return table


def pairs(title: str, lines: dict[str, str]) -> Table:
    """A table of names and values."""
    table = titled(title)
    table.show_header = False
    table.add_column(style="dim")
    table.add_column()
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return table


def _summary(model: Model, report: Report) -> Table:
    window = "" if model.window is None else f", sliding window {model.window}"
    return pairs(
        f"{model.name}\n",
        {
            "family": model.family,
            "layers": f"{model.num_layers} of width {model.hidden_size}",
            "attention": f"{model.num_heads} query heads, {model.num_kv_heads} "
            f"key/value heads, of {model.head_dim}{window}",
            "softmax": model.softmax,
            "feed-forward": str(model.intermediate_size),
            "vocabulary": f"{model.vocab_size}{', tied' if model.tied else ''}",
            "context": f"{model.max_position} tokens",
            "dtype": report.dtype,
        },
    )


def _parameters(report: Report) -> Table:
    table = titled("\nParameters")
    table.show_footer = True
    weight_bytes = sum(row.num_bytes for row in report.parameters)
    table.add_column("role", footer="all")
    table.add_column("shape", justify="right")
    table.add_column("times", justify="right")
    table.add_column("elements", justify="right", footer=f"{report.num_parameters:,}")
    table.add_column("size", justify="right", footer=gib(weight_bytes))
    for row in report.parameters:
        shape = " x ".join(map(str, row.shape))
        elements = f"{row.elements:,}"
        table.add_row(row.path, shape, str(row.count), elements, gib(row.num_bytes))
    return table


def _memory(memory: Memory, device: str) -> Table:
    short = {}
    if memory.missing_bytes:
        needed = gib(memory.budget_bytes + memory.missing_bytes)
        short = {
            "missing": f"{gib(memory.missing_bytes)} of the {needed} that follow",
            "what would fit": ", or ".join(memory.would_fit),
        }
    step = {}
    if memory.step_pages:
        step = {
            "largest step": f"{gib(memory.step_pages * memory.page_bytes)}: the last "
            f"{memory.step_pages:,} pages, while it runs"
        }
    return pairs(
        f"\nMemory on {device}",
        {
            "budget": gib(memory.budget_bytes),
            **short,
            "weights": gib(memory.weight_bytes),
            "workspace": gib(memory.workspace_bytes),
            "KV cache": f"{gib(memory.kv_bytes)}: {memory.num_tokens:,} tokens in "
            f"{memory.num_pages:,} pages",
            **step,
            "unused": gib(memory.unused_bytes),
            "page": f"{memory.page_size} tokens, {memory.page_bytes:,} bytes",
            "token": f"{memory.token_bytes:,} bytes of KV",
            "longest sequence": f"{memory.max_model_len} tokens",
            "most sequences": str(memory.max_num_seqs),
            "picture": picture(memory),
        },
    )


def _kernels(report: Report) -> Table:
    table = titled("\nOperations of a decode step")
    table.show_header = False
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for line in report.kernels:
        name, _, answer = line.partition(": ")
        table.add_row(name, Text(answer))
    return table
