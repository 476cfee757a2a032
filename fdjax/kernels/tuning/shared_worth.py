"""From where on it pays to read once what rows share, by times of a layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fdjax.kernels.shared_prefix.table import Worth
from fdjax.kernels.tuning.thresholds import Comparison, chosen

PAGE_SIZE = 16
PROMPT_HEADS, HEAD_DIM = 40, 128
"""Of beams: the heads of Llama-2-13B, each with keys of its own."""
OWN = 512
"""Tokens that a row has after what it shares."""
WIDTH = 4
"""Beams of a prompt."""
BATCH_ROWS = (4, 16, 64)
BATCH_SAVED = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
LARGE_GROUP = (32, 2048)
"""Rows and tokens of a group that is worth it beside any other."""
GROUP_ROWS, NUM_GROUPS = (2, 4), 16
GROUP_SAVED = (256, 512, 1024, 2048, 4096)
PROMPTS = (1, 4, 16)
PROMPT_SAVED = (10_000_000, 20_000_000, 40_000_000, 80_000_000, 160_000_000)

_TOKEN_BYTES = 2 * PROMPT_HEADS * HEAD_DIM * 2


@dataclass(frozen=True)
class Sharing:
    """Rows that decode: those of a group after those of another.

    Attributes:
        groups: rows of each, and the tokens that they share.
        own: tokens of each row after these.
    """

    groups: tuple[tuple[int, int], ...]
    own: int = OWN


class Times(Protocol):
    """Measures attention; see `fdjax.kernels.tuning.shared_times`."""

    def rows(self, sharing: Sharing, once: int) -> float:
        """Microseconds of a layer that reads once what the first groups share.

        Args:
            sharing: whose other groups' rows each read what they share.
            once: so many groups.
        """
        ...

    def prompts(self, count: int, tokens: int, *, once: bool) -> float:
        """Microseconds of a layer of beams, `WIDTH` for each prompt.

        Args:
            count: of prompts.
            tokens: of each.
            once: prompts are read once; else by each of their beams.
        """
        ...


type Findings = Mapping[str, Sequence[Comparison]]
"""By the field of `Worth`, what was measured for it."""

NUM_POINTS = (
    len(BATCH_ROWS) * len(BATCH_SAVED)
    + len(GROUP_ROWS) * len(GROUP_SAVED)
    + len(PROMPTS) * len(PROMPT_SAVED)
)
"""How often `measured` calls back."""


def measured(times: Times, *, on_point: Callable[[], None] = lambda: None) -> Findings:
    """Times layers with and without reading once, around each threshold."""

    def called[T](value: T) -> T:
        on_point()
        return value

    of_batch = [
        called(_batch_point(times, rows, saved))
        for rows in BATCH_ROWS
        for saved in BATCH_SAVED
    ]
    of_group = [
        called(_group_point(times, rows, saved))
        for rows in GROUP_ROWS
        for saved in GROUP_SAVED
    ]
    prompts = [
        called(_prompt_point(times, count, saved))
        for count in PROMPTS
        for saved in PROMPT_SAVED
    ]
    return {"of_group": of_group, "of_batch": of_batch, "prompt_bytes": prompts}


def worth(points: Findings, before: Worth) -> Worth:
    """The thresholds by which least time is lost.

    Args:
        points: measured.
        before: what stands; what is not better by more than noise does not replace it.
    """
    return Worth(
        **{name: chosen(points[name], one) for name, one in vars(before).items()}
    )


def _pages(tokens: int) -> int:
    """The same or a little more, a page at least."""
    return -(-tokens // PAGE_SIZE) * PAGE_SIZE


def _batch_point(times: Times, rows: int, saved: int) -> Comparison:
    tokens = _pages(saved // (rows - 1))
    sharing = Sharing(((rows, tokens),))
    return Comparison(
        (rows - 1) * tokens, times.rows(sharing, 0), times.rows(sharing, 1)
    )


def _group_point(times: Times, rows: int, saved: int) -> Comparison:
    """Of small groups beside a large one, which pays for the launches."""
    tokens = _pages(saved // (rows - 1))
    sharing = Sharing((LARGE_GROUP, *((rows, tokens),) * NUM_GROUPS))
    every = len(sharing.groups)
    return Comparison(
        (rows - 1) * tokens, times.rows(sharing, 1), times.rows(sharing, every)
    )


def _prompt_point(times: Times, count: int, saved: int) -> Comparison:
    reads = count * (WIDTH - 1)
    tokens = _pages(saved // (reads * _TOKEN_BYTES))
    each, once = (times.prompts(count, tokens, once=way) for way in (False, True))
    return Comparison(reads * tokens * _TOKEN_BYTES, each, once)
