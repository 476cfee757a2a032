"""Who does what of a decode step's attention, for rows of lengths that are told."""

import dataclasses
import pathlib
from collections import Counter

import numpy as np

from fdjax.errors import ConfigError
from fdjax.kernels.attention_plan import Plan, make_plan
from fdjax.kernels.attention_plan.shape import MAX_ROWS
from fdjax.kernels.decode_attention import config
from fdjax.models.config import ModelConfig

# Costs of longer rows, times their heads, would leave a plan's 32 bits.
_MAX_TOKENS = 2**24


@dataclasses.dataclass(frozen=True)
class Sharing:
    """A plan, and what it was made with.

    Attributes:
        lengths: tokens of each row.
        launch_config: of the kernel; its `slots` are the clusters that share the plan.
        plan: who does what.
    """

    lengths: tuple[int, ...]
    launch_config: config.LaunchConfig
    plan: Plan

    @property
    def busiest(self) -> float:
        """What the busiest cluster does, in parts of the mean over all."""
        loads = self.plan.loads()
        return float(loads.max() / max(loads.mean(), 1))

    def lines(self) -> dict[str, str]:
        """In words."""
        items, chosen = self.plan.items, self.launch_config
        whole = Counter(item.heads for item in items if item.pieces == 1)
        blocks = "block" if chosen.splits == 1 else "blocks"
        chunk = self.plan.chunk_tokens
        lines = {
            "rows": f"{len(self.lengths)}, of {min(self.lengths):,} to "
            f"{max(self.lengths):,} tokens",
            "clusters": f"{chosen.slots} of {chosen.splits} {blocks} of "
            f"{chosen.warps} warps",
            "items": f"{len(items)}",
            "an item has": f"at most {chunk:,} tokens of a head" if chunk else "a row",
        }
        for heads, count in sorted(whole.items()):
            noun = "head" if heads == 1 else "heads"
            lines[f"whole rows, {heads} {noun}"] = f"{count} items"
        if self.plan.num_pieces:
            lines["pieces of cut rows, 1 head"] = f"{self.plan.num_pieces} items"
        lines["busiest cluster"] = f"{self.busiest:.2f} of the mean"
        return lines


def parse_rows(text: str) -> tuple[int, ...]:
    """Lengths of rows, as "63x512,32768" for 63 rows of 512 tokens and one of 32,768.

    Raises:
        ConfigError: it says something else, more rows than a plan has room for, or
            rows of no tokens or longer than those of any model.
    """
    lengths: list[int] = []
    for part in text.split(","):
        count, length = part.split("x", 1) if "x" in part else ("1", part)
        if not length.isdecimal() or not count.isdecimal():
            raise ConfigError(
                f"--plan {text}: {part!r} is not a length as 512, or a number of rows "
                "and their length as 63x512"
            )
        if len(lengths) + int(count) > MAX_ROWS:
            raise ConfigError(f"--plan {text}: more rows than {MAX_ROWS}")
        if int(length) == 0:
            raise ConfigError(
                f"--plan {text}: {part!r} is a row of no tokens; give 1 or more"
            )
        if int(length) > _MAX_TOKENS:
            raise ConfigError(f"--plan {text}: a row of more than {_MAX_TOKENS} tokens")
        lengths += [int(length)] * int(count)
    if not lengths:
        raise ConfigError(f"--plan {text}: no rows")
    return tuple(lengths)


def share(model: ModelConfig, lengths: tuple[int, ...], *, page_size: int) -> Sharing:
    """The plan that a step over such rows would have on an H200.

    Args:
        model: whose heads and window; of layers with several, the first one's.
        lengths: tokens of each row.
        page_size: tokens of a page.
    """
    attention, rows = model.layers[0].attention, len(lengths)
    group = attention.num_heads // attention.num_kv_heads
    pages = -(-max(lengths) // page_size)
    sizes = config.Sizes.of(
        rows,
        attention.num_kv_heads,
        pages * page_size,
        head_dim=attention.head_dim,
        group=group,
        page_size=page_size,
    )
    chosen = config.heuristic(sizes)
    shape = chosen.plan_shape(rows, attention.num_kv_heads)
    plan = make_plan(lengths, shape, room=sizes.max_tokens, window=attention.window)
    return Sharing(lengths, chosen, plan)


def draw(sharing: Sharing, path: pathlib.Path) -> None:
    """Draws what each cluster does, one item above the other.

    Args:
        sharing: the plan.
        path: the picture; its suffix says the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    slots, items = sharing.plan.shape.slots, sharing.plan.items
    below = np.zeros(slots)
    for turn in range(-(-len(items) // slots)):
        taken = items[turn * slots : (turn + 1) * slots]
        places = np.arange(len(taken))
        places = places if turn % 2 == 0 else slots - 1 - places
        costs = np.array([item.cost for item in taken])
        cut = np.array([item.pieces > 1 for item in taken])
        for mask, name, colour in (
            (~cut, "heads of whole rows", "#4c72b0"),
            (cut, "pieces of cut rows", "#dd8452"),
        ):
            label = name if turn == 0 and mask.any() else None
            bottom, heights = below[places[mask]], costs[mask]
            axes.bar(
                places[mask], heights, 1.0, bottom, color=colour, ec="w", lw=0.3,
                label=label,
            )  # fmt: skip
        below[places] += costs
    axes.axhline(float(below.mean()), color="k", lw=0.8, ls="--", label="mean")
    axes.set(xlabel="cluster", ylabel="tokens of a head", xlim=(-0.5, slots - 0.5))
    axes.legend(loc="lower right")
    figure.savefig(path)
