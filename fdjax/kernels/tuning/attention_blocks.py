"""Which blocks serve attention of rows that decode, by times of a layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fdjax.kernels.chip import Chip
from fdjax.kernels.decode_attention.table import Blocks
from fdjax.kernels.tuning.thresholds import Comparison, best, chosen

NUM_KV_HEADS = 8
"""Of what is timed: the heads of Llama-3-8B."""
MANY = ((64, 1024), (128, 1024), (256, 1024))
"""Rows and tokens of each, where blocks of 8 warps fill the GPU more than once."""
ROWS = (1, 4, 16)
"""Rows that two blocks for each row and head need not fill."""
TWO_FILL_TOKENS = (1024, 1280, 1536, 2048, 3072, 4096)
LONG_TOKENS = (2048, 4096, 6144, 8192, 12_288, 16_384, 32_768)
MOST_TOKENS = 2**18
"""Of all rows: 1 GiB a layer."""
NEVER = 2**31 - 1


class Times(Protocol):
    """Measures attention; see `fdjax.kernels.tuning.attention_times`."""

    def microseconds(self, blocks: Blocks, rows: int, tokens: int) -> float:
        """Of a layer, where `blocks` chooses, and rows have so many tokens each."""
        ...


@dataclass(frozen=True)
class Findings:
    """What was measured, and what follows.

    Attributes:
        blocks: chosen.
        many: microseconds of all `MANY` by the number of blocks.
        points: by rows, whether tokens count as long.
    """

    blocks: Blocks
    many: Mapping[int, Sequence[float]]
    points: Mapping[int, Sequence[Comparison]]


def measured(
    times: Times,
    chip: Chip,
    before: Blocks,
    *,
    on_point: Callable[[], None] = lambda: None,
) -> Findings:
    """Times blocks on both sides of each threshold, and chooses the thresholds.

    Args:
        times: measures.
        chip: whose SMs are to be filled.
        before: what stands; what is not better by more than noise does not replace it.
        on_point: called after each of `num_points`.
    """
    many: dict[int, list[float]] = {}
    for count in _counts(chip, before):
        blocks = replace(before, blocks_two_an_sm=count)
        many[count] = [times.microseconds(blocks, *case) for case in MANY]
        on_point()
    blocks = replace(before, blocks_two_an_sm=_most_even(many, before))
    points: dict[int, list[Comparison]] = {}
    for rows, tokens in _cases(chip):
        points.setdefault(rows, []).append(_point(times, blocks, rows, tokens))
        on_point()
    two_fill = [p for rows in points if _two_fill(rows, chip) for p in points[rows]]
    others = [p for rows in points if not _two_fill(rows, chip) for p in points[rows]]
    long_from = chosen(others, before.long_from)
    sooner = min(chosen(two_fill, before.long_from_if_two_fill), long_from)
    blocks = replace(blocks, long_from=long_from, long_from_if_two_fill=sooner)
    return Findings(blocks, many, points)


def num_points(chip: Chip, before: Blocks) -> int:
    """How often `measured` calls back."""
    return len(_counts(chip, before)) + len(_cases(chip))


def _counts(chip: Chip, before: Blocks) -> list[int]:
    """All that fit, and fewer that rows and heads divide more evenly."""
    most = 2 * chip.num_sms
    even = {most // unit * unit for unit in (1, 8, 16, 32, 64)}
    return sorted(even | {before.blocks_two_an_sm})


def _most_even(many: Mapping[int, Sequence[float]], before: Blocks) -> int:
    least = [min(us) for us in zip(*many.values(), strict=True)]
    losses = {
        count: sum(one / fast for one, fast in zip(us, least, strict=True)) / len(us)
        for count, us in many.items()
    }
    return best(losses, before.blocks_two_an_sm)


def _cases(chip: Chip) -> list[tuple[int, int]]:
    """Rows, and tokens of each."""
    filling = chip.num_sms // 2 // NUM_KV_HEADS
    return [
        (rows, tokens)
        for rows in sorted({*ROWS, filling})
        for tokens in (TWO_FILL_TOKENS if _two_fill(rows, chip) else LONG_TOKENS)
        if rows * tokens <= MOST_TOKENS
    ]


def _two_fill(rows: int, chip: Chip) -> bool:
    """As `decode_attention.config.heuristic` says it."""
    return chip.num_sms // (rows * NUM_KV_HEADS) == 2


def _point(times: Times, blocks: Blocks, rows: int, tokens: int) -> Comparison:
    short, long = (
        times.microseconds(
            replace(blocks, long_from=start, long_from_if_two_fill=start), rows, tokens
        )
        for start in (NEVER, 1)
    )
    return Comparison(tokens, short, long)
