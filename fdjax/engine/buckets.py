"""The few static shapes that programs are compiled for."""

from dataclasses import dataclass

# A page table four times too wide costs the reference attention reads of masked pages;
# a finer ladder costs compilations. The decode kernels read only what a row holds.
WIDTH_RATIO = 4
SMALLEST_PROMPT = 16


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
        max_batched_tokens: `B * S` of one prefill call, unless one prompt is longer.
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
    ) -> "Buckets":
        """The ladders that reach `max_num_seqs` rows of `max_model_len` tokens."""
        widest = -(-max_model_len // page_size)
        longest = widest * page_size
        return Buckets(
            rows=ladder(1, max_num_seqs, 2),
            prompts=ladder(min(SMALLEST_PROMPT, longest), longest, 2),
            widths=ladder(min(4, widest), widest, WIDTH_RATIO),
            max_batched_tokens=max_batched_tokens,
        )

    @property
    def longest_chunk(self) -> int:
        """The most tokens of one prompt that a prefill call computes."""
        fitting = [step for step in self.prompts if step <= self.max_batched_tokens]
        return max(fitting, default=self.prompts[0])

    def prefill_rows(self, prompt: int, rows: int) -> int:
        """Rows of one prefill call of prompts padded to `prompt` tokens."""
        fitting = max(1, self.max_batched_tokens // prompt)
        return max(step for step in self.rows if step <= min(fitting, rows))
