"""A memory plan as a bar: what lies where, in proportion."""

from collections.abc import Mapping

from fdjax.cli.report import Memory

WIDTH = 56
"""Characters of a bar."""


def picture(memory: Memory) -> str:
    """The bar, and what its characters stand for, in two lines.

    The arena is one array: pages are handed out from its beginning, and a step's
    activations lie at its end, up to where the largest step's reach.
    """
    step = memory.step_pages * memory.page_bytes
    parts = {
        "weights": ("█", memory.weight_bytes),
        "pages": ("░", memory.kv_bytes - step),
        "pages, or the largest step": ("▒", step),
        "beside": ("▓", memory.workspace_bytes),
        "unused": ("·", memory.unused_bytes),
    }
    there = {name: part for name, part in parts.items() if part[1] > 0}
    bar = "".join(
        symbol * count
        for (symbol, _), count in zip(there.values(), _counts(there), strict=True)
    )
    legend = "  ".join(f"{symbol} {name}" for name, (symbol, _) in there.items())
    return f"{bar}\n{legend}"


def _counts(parts: Mapping[str, tuple[str, int]]) -> list[int]:
    """Characters of each part: at least one, and `WIDTH` together."""
    sizes = [size for _, size in parts.values()]
    counts = [max(1, size * WIDTH // sum(sizes)) for size in sizes]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    counts[largest] += WIDTH - sum(counts)
    return counts
