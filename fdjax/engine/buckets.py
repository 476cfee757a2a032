"""The few static shapes that programs are compiled for."""

from dataclasses import dataclass

# A page table four times too wide costs the reference attention reads of masked pages;
# a finer ladder costs compilations. The decode kernels read only what a row holds.
WIDTH_RATIO = 4
SMALLEST_PREFILL = 16
# Prompts that a prefill call takes at most: each costs a row of logits.
PREFILL_ROWS = 64
# Tokens of a prompt that are scored in one call: each costs a row of logits.
SCORED_TOKENS = 64
# A call of so few tokens takes as long as reading the weights: padding costs nothing.
CHEAP_TOKENS = 256
# Of more tokens than that, this part may be padding: else what fills the next smaller
# call goes first, and the rest into another one.
MAX_PADDING = 1 / 8


def ladder(smallest: int, largest: int, ratio: int) -> tuple[int, ...]:
    """`smallest`, times `ratio` and again, up to and always with `largest`."""
    steps: list[int] = []
    step = smallest
    while step < largest:
        steps.append(step)
        step *= ratio
    return (*steps, largest)


def smallest_fitting(steps: tuple[int, ...], size: int) -> int:
    """The first step that is at least `size`; the caller has checked that one is."""
    return next(step for step in steps if step >= size)


@dataclass(frozen=True)
class Buckets:
    """Every shape the engine pads to.

    Attributes:
        rows: batch sizes, `B`.
        prefills: tokens of prefill calls, `T`: those of all their prompts together.
        widths: page-table widths of decode programs, `W`.
    """

    rows: tuple[int, ...]
    prefills: tuple[int, ...]
    widths: tuple[int, ...]

    @staticmethod
    def of(
        *,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        max_batched_tokens: int,
        smallest_width: int = 1,
        width_ratio: int = WIDTH_RATIO,
    ) -> "Buckets":
        """The ladders that reach `max_num_seqs` rows of `max_model_len` tokens."""
        widest = -(-max_model_len // page_size)
        smallest = min(max(width_ratio, smallest_width), widest)
        return Buckets(
            rows=ladder(1, max_num_seqs, 2),
            prefills=ladder(
                min(SMALLEST_PREFILL, max_batched_tokens), max_batched_tokens, 2
            ),
            widths=ladder(smallest, widest, width_ratio),
        )

    @property
    def step_tokens(self) -> int:
        """The most tokens of the prefill calls of one engine step."""
        return self.prefills[-1]

    @property
    def prefill_rows(self) -> int:
        """The most prompts of a prefill call; it has room for as many."""
        return min(PREFILL_ROWS, self.rows[-1])

    @property
    def mask_rows(self) -> tuple[int, ...]:
        """Numbers of rows whose masks one call replaces."""
        return ladder(1, self.rows[-1], 16)

    def prefill_tokens(self, count: int) -> int:
        """Tokens of the next prefill call, where `count` wait.

        It is padded where that is cheap; else it takes less than all.

        Args:
            count: at least 1.
        """
        padded = next((step for step in self.prefills if step >= count), None)
        if padded is not None and (
            padded <= CHEAP_TOKENS or padded - count <= MAX_PADDING * padded
        ):
            return padded
        return max(step for step in self.prefills if step <= count)
