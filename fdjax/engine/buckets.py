"""The few static shapes that programs are compiled for."""

from dataclasses import dataclass

# A page table four times too wide costs the reference attention reads of masked pages;
# a finer ladder costs compilations. The decode kernels read only what a row holds.
WIDTH_RATIO = 4
SMALLEST_PROMPT = 16
# A finer ladder of prefill rows costs compilations, a coarser one calls or padding.
PREFILL_RATIO = 4
# A call of so few tokens takes as long as reading the weights: padding costs nothing.
CHEAP_TOKENS = 256


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
        prompts: padded prompt lengths, `S`.
        widths: page-table widths of decode programs, `W`.
        max_batched_tokens: `B * S` of the prefill calls of one engine step, unless one
            prompt is longer.
    """

    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    widths: tuple[int, ...]
    max_batched_tokens: int

    @staticmethod
    def of(
        *,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        max_batched_tokens: int,
        width_ratio: int = WIDTH_RATIO,
    ) -> "Buckets":
        """The ladders that reach `max_num_seqs` rows of `max_model_len` tokens."""
        widest = -(-max_model_len // page_size)
        longest = widest * page_size
        return Buckets(
            rows=ladder(1, max_num_seqs, 2),
            prompts=ladder(min(SMALLEST_PROMPT, longest), longest, 2),
            widths=ladder(min(width_ratio, widest), widest, width_ratio),
            max_batched_tokens=max_batched_tokens,
        )

    @property
    def longest_chunk(self) -> int:
        """The most tokens of one prompt that a prefill call computes."""
        fitting = [step for step in self.prompts if step <= self.max_batched_tokens]
        return max(fitting, default=self.prompts[0])

    @property
    def step_tokens(self) -> int:
        """The most tokens of the prefill calls of one engine step."""
        return max(self.max_batched_tokens, self.longest_chunk)

    def prefill_steps(self, prompt: int, room: int | None = None) -> tuple[int, ...]:
        """Numbers of rows of prefill calls of prompts padded to `prompt` tokens.

        The last is the fullest call: two of half the size take 0.5 % longer on an H200.

        Args:
            prompt: one of `prompts`.
            room: tokens that a call may have, `step_tokens` by default.
        """
        most = max(1, min(self.step_tokens // prompt, self.rows[-1]))
        fullest = 2 ** (most.bit_length() - 1)
        fitting = fullest if room is None else max(1, room // prompt)
        steps = ladder(1, fullest, PREFILL_RATIO)
        return tuple(step for step in steps if step <= fitting)

    def prefill_rows(self, prompt: int, count: int, room: int | None = None) -> int:
        """Rows of the next prefill call, of `count` prompts that wait.

        They are padded where that is cheap; else those beyond a step wait for another
        call, which costs less than computing rows that nobody has.

        Args:
            prompt: tokens they are padded to, one of `prompts`.
            count: at least 1.
            room: see `prefill_steps`.
        """
        steps = self.prefill_steps(prompt, room)
        padded = next((step for step in steps if step >= count), None)
        if padded is not None and padded * prompt <= CHEAP_TOKENS:
            return padded
        return max(step for step in steps if step <= count)
