"""Who does what of a step's attention, for rows of lengths that are told."""

import dataclasses
from collections import Counter

import numpy as np

from fdjax.cli.plan_pictures import Bars
from fdjax.cli.planned_heads import check_decoding
from fdjax.cli.prompt_plans import Prompt
from fdjax.config import Attention
from fdjax.errors import ConfigError
from fdjax.kernels.attention_plan import Plan, make_plan
from fdjax.kernels.attention_plan.shape import MAX_ROWS
from fdjax.kernels.decode_attention import config

# Costs of longer rows, times their heads, would leave a plan's 32 bits.
_MAX_TOKENS = 2**24
# Python itself makes no int of some thousand digits.
_BEYOND = 10**12


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

    def bars(self) -> Bars:
        """What each cluster does, to be drawn."""
        slots, items = self.plan.shape.slots, self.plan.items
        turn, place = np.divmod(np.arange(len(items)), slots)
        return Bars(
            np.where(turn % 2 == 0, place, slots - 1 - place),
            np.array([item.cost for item in items]),
            np.array([item.pieces > 1 for item in items]),
        )

    def lines(self) -> dict[str, str]:
        """In words."""
        items, chosen = self.plan.items, self.launch_config
        whole = Counter(item.heads for item in items if item.pieces == 1)
        blocks = "block" if chosen.splits == 1 else "blocks"
        piece = self.plan.piece_tokens
        lines = {
            "rows": f"{len(self.lengths)}, of {min(self.lengths):,} to "
            f"{max(self.lengths):,} tokens",
            "clusters": f"{chosen.slots} of {chosen.splits} {blocks} of "
            f"{chosen.warps} warps",
            "items": f"{len(items)}",
            "an item has": f"at most {piece:,} tokens of a head" if piece else "a row",
        }
        for heads, count in sorted(whole.items()):
            noun = "head" if heads == 1 else "heads"
            lines[f"whole rows, {heads} {noun}"] = f"{count} items"
        if self.plan.num_pieces:
            lines["pieces of cut rows, 1 head"] = f"{self.plan.num_pieces} items"
        lines["busiest cluster"] = self.bars().told("cluster", chosen.slots)
        return lines


def parse_rows(text: str) -> tuple[tuple[int, ...], tuple[Prompt, ...]]:
    """Lengths of rows that decode, and prompts.

    Args:
        text: "63x512,32768" is 63 rows of 512 tokens and one of 32,768; "2x64@1000"
            are two rows of 64 new tokens after 1,000.

    Raises:
        ConfigError: it says something else, more rows than a plan has room for, or
            rows of no tokens or longer than those of any model.
    """
    lengths, prompts = list[int](), list[Prompt]()
    said = _start(text)
    for part in text.split(","):
        counted, at, before = part.partition("@")
        count, length = counted.split("x", 1) if "x" in part else ("1", counted)
        numbers = (count, length, before) if at else (count, length)
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ConfigError(
                f"--plan {said}: {_start(part)!r} is not a length as 512, a number of "
                "rows and their length as 63x512, or new tokens after others as 64@1000"
            )
        rows, tokens, earlier = (
            _up_to_limit(number or "0") for number in (count, length, before)
        )
        if (so_far := len(lengths) + len(prompts) + rows) > MAX_ROWS:
            raise ConfigError(
                f"--plan {said}: more rows than {MAX_ROWS}: {_told(so_far)} with "
                f"{_start(part)!r}; give {MAX_ROWS} at most"
            )
        for number, what in ((rows, "no row"), (tokens, "a row of no tokens")):
            if number == 0:
                raise ConfigError(
                    f"--plan {said}: {_start(part)!r} is {what}; give 1 or more"
                )
        if tokens + earlier > _MAX_TOKENS:
            raise ConfigError(
                f"--plan {said}: a row of more than {_MAX_TOKENS} tokens: "
                f"{_told(tokens + earlier)}; give {_MAX_TOKENS} at most"
            )
        if at:
            prompts += [Prompt(tokens, earlier)] * rows
        else:
            lengths += [tokens] * rows
    if (new := sum(prompt.new for prompt in prompts)) > _MAX_TOKENS:
        raise ConfigError(
            f"--plan {said}: more than {_MAX_TOKENS} new tokens: {new}; give "
            f"{_MAX_TOKENS} at most, in all"
        )
    return tuple(lengths), tuple(prompts)


def _up_to_limit(number: str) -> int:
    """A number in digits; of one with more than anybody reads, that it is beyond."""
    return int(number) if len(number) <= len(str(_BEYOND)) else _BEYOND


def _told(number: int) -> str:
    return f"{number}" if number < _BEYOND else f"{_BEYOND} or more"


def _start(text: str) -> str:
    """As much of what was said as a line has room for."""
    return text if len(text) <= 60 else f"{text[:60]}..."


def share(attention: Attention, lengths: tuple[int, ...], *, page_size: int) -> Sharing:
    """The plan that a step over such rows would have on an H200.

    Args:
        attention: of a layer, whose heads and window.
        lengths: tokens of each row.
        page_size: tokens of a page.

    Raises:
        ConfigError: no kernel has such heads, or pages of that size.
    """
    check_decoding(attention, page_size=page_size)
    rows = len(lengths)
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
