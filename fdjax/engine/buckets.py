"""The few static shapes that programs are compiled for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# A page table four times too wide costs the reference attention reads of masked pages;
# a finer ladder costs compilations. The decode kernels read only what a row holds.
WIDTH_RATIO = 4
SMALLEST_PREFILL = 16
# Prompts that a call takes at most: each brings what its request asks of sampling.
PREFILL_ROWS = 64
# And fewer in a call of fewer tokens: for as many as these each may bring one.
TOKENS_OF_PROMPT = 16
FEWEST_PROMPTS = 16
# Tokens of a prompt that are scored in one call: each costs a row of logits.
SCORED_TOKENS = 64
# A call of so few tokens takes as long as reading the weights: padding costs nothing.
CHEAP_TOKENS = 256
# Of more tokens than that, this part may be padding: else what fills the next smaller
# call goes first, and the rest into another one.
MAX_PADDING = 1 / 5
# Where a call's time is that of its tokens, the next larger one has a sixteenth more,
# but a tile at least. (With a quarter more, at 20 conversations a second on an H200, a
# tenth of all time went into padding.)
FINE_PART = 1 / 16
TILE = 64
# A call of so many tokens takes no more time for each than a larger one does, and lets
# all else wait for less.
USUAL_TOKENS = 3072


def ladder(smallest: int, largest: int, ratio: int) -> tuple[int, ...]:
    """`smallest`, times `ratio` and again, up to and always with `largest`."""
    steps: list[int] = []
    step = smallest
    while step < largest:
        steps.append(step)
        step *= ratio
    return (*steps, largest)


def fine_ladder(smallest: int, largest: int) -> tuple[int, ...]:
    """As `ladder` of 2 up to `CHEAP_TOKENS`, and finer from there on."""
    if largest <= CHEAP_TOKENS:
        return ladder(smallest, largest, 2)
    steps, step = [*ladder(smallest, CHEAP_TOKENS, 2)], CHEAP_TOKENS
    while (step := _finely_next(step)) < largest:
        steps.append(step)
    return (*steps, largest)


def _finely_next(step: int) -> int:
    return step + max(int(step * FINE_PART) // TILE, 1) * TILE


def prompts_of(tokens: int, *, num_rows: int) -> int:
    """Prompts that a call of so many tokens has room for.

    Attention cuts the keys of prompts where queries are few, which it must see from how
    many rows of prompts there can be.

    Args:
        tokens: of the call, padding included.
        num_rows: of the largest batch.
    """
    most = max(tokens // TOKENS_OF_PROMPT, FEWEST_PROMPTS)
    return min(most, PREFILL_ROWS, num_rows)


def smallest_fitting(steps: tuple[int, ...], size: int) -> int:
    """The first step that is at least `size`; the caller has checked that one is."""
    return next(step for step in steps if step >= size)


@dataclass(frozen=True)
class Buckets:
    """Every shape the engine pads to.

    Attributes:
        rows: batch sizes, `B`.
        prefills: tokens of calls with prompts, `T`: those of all their rows together.
        widths: page-table widths of decode programs, `W`.
        widths_of: by number of rows, those that are served in ways of their own; all
            of them where it says nothing.
    """

    rows: tuple[int, ...]
    prefills: tuple[int, ...]
    widths: tuple[int, ...]
    widths_of: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)

    @staticmethod
    def of(
        *,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        max_batched_tokens: int,
        smallest_width: int = 1,
        width_ratio: int = WIDTH_RATIO,
        alike_from: int | None = None,
        fine: bool = False,
    ) -> "Buckets":
        """The ladders that reach `max_num_seqs` rows of `max_model_len` tokens.

        Args:
            max_num_seqs: see above, as for the next one.
            max_model_len: see above.
            page_size: tokens of a page.
            max_batched_tokens: of the largest call.
            smallest_width: of page tables, in pages.
            width_ratio: of their ladder.
            alike_from: tables of so many pages and more are served alike, by programs
                of the widest; `None`: none are.
            fine: padding costs more than more programs do.
        """
        widest = -(-max_model_len // page_size)
        smallest = min(max(width_ratio, smallest_width), widest)
        widths = ladder(smallest, widest, width_ratio)
        if alike_from is not None:
            widths = (*(width for width in widths[:-1] if width < alike_from), widest)
        fewest = min(SMALLEST_PREFILL, max_batched_tokens)
        return Buckets(
            rows=ladder(1, max_num_seqs, 2),
            prefills=fine_ladder(fewest, max_batched_tokens)
            if fine
            else ladder(fewest, max_batched_tokens, 2),
            widths=widths,
        )

    @property
    def step_tokens(self) -> int:
        """The most tokens of the calls with prompts of one engine step."""
        return self.prefills[-1]

    def mixes(self, num_decoding: int) -> bool:
        """Whether a call with prompts has a token of each of so many rows, too.

        They take turns where little room were left to prompts.
        """
        return 2 * num_decoding <= self.step_tokens

    @property
    def prefill_rows(self) -> int:
        """The most prompts of a call."""
        return min(PREFILL_ROWS, self.rows[-1])

    def width(self, num_pages: int) -> int:
        """Pages that a page table for so many has room for."""
        return smallest_fitting(self.widths, num_pages)

    def decode_widths(self, num_rows: int) -> tuple[int, ...]:
        """Page-table widths that programs of so many rows are compiled for."""
        return self.widths_of.get(num_rows, self.widths)

    def beam_rows(self, num_groups: int, width: int) -> int:
        """Rows of a search's calls: each group's beams, padded.

        Args:
            num_groups: groups of the search.
            width: beams of each.
        """
        return num_groups * self.group_rows(num_groups, width)

    def group_rows(self, num_groups: int, width: int) -> int:
        """Rows of each group: padded, but all groups have no more than there are.

        What sampling takes is counted for those.

        Args:
            num_groups: groups of the search.
            width: beams of each.
        """
        padded = smallest_fitting(self.rows, width)
        return min(padded, self.rows[-1] // num_groups)

    @property
    def pooled(self) -> tuple[int, ...]:
        """Tokens of calls that pool prompts: few shapes, for what few ask for."""
        return ladder(min(CHEAP_TOKENS, self.step_tokens), self.step_tokens, 4)

    @property
    def mask_rows(self) -> tuple[int, ...]:
        """Numbers of rows whose masks one call replaces."""
        return ladder(1, self.rows[-1], 16)

    def prompts_of(self, tokens: int) -> int:
        """Prompts that a call of so many tokens has room for."""
        return prompts_of(tokens, num_rows=self.rows[-1])

    def call_shape(self, count: int, num_prompts: int) -> tuple[int, int]:
        """Tokens, and prompts, that the smallest call has room for that fits."""
        for step in self.prefills:
            if step >= count and self.prompts_of(step) >= num_prompts:
                return step, self.prompts_of(step)
        raise AssertionError(f"{count} tokens of {num_prompts} prompts in one call")

    def call_tokens(
        self, count: int, *, num_decoding: int = 0, crowded: bool = False
    ) -> int:
        """Tokens of the next call with prompts, where `count` wait.

        It is padded where that is cheap; else it takes less than all, if that is most
        of them.

        Args:
            count: those of rows that decode, which all go, and of prompts; more.
            num_decoding: of rows that decode.
            crowded: others wait for a row. Then there is always a next call for a
                small rest, and time spent on padding is lost to all.
        """
        padded = next((step for step in self.prefills if step >= count), None)
        filled = max((step for step in self.prefills if step <= count), default=0)
        leaves_little = crowded and count - filled <= FINE_PART * filled
        if padded is not None and (
            padded <= CHEAP_TOKENS
            or (padded - count <= MAX_PADDING * padded and not leaves_little)
        ):
            return padded
        if padded is None or 2 * (filled - num_decoding) >= count - num_decoding:
            return filled
        return padded
