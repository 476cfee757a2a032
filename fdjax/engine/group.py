"""`Group`: the beams of one request, as the host knows them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fdjax.engine.request import Hypothesis
from fdjax.generate.beam_loop import BeamRun, BeamStep
from fdjax.generate.beam_params import BeamSearchParams, num_outputs
from fdjax.generate.beam_state import OUT, BeamRules
from fdjax.generate.beam_trace import BeamTrace
from fdjax.generate.stopping import FinishReason


@dataclass(eq=False)
class Group:
    """A search that is under way, or waits.

    One that is put back begins anew: its steps are computed again from the prompt, and
    give the same beams, scores and hypotheses. Nothing of it has been told before its
    end, so nobody notices.

    Attributes:
        params: what is looked for.
        pages: of the KV array, of each beam for the tokens after the prompt, in order.
        trace: the steps read so far.
        rules: on the device, while it runs.
        run: likewise; what the last step left.
    """

    params: BeamSearchParams
    pages: list[list[int]] = field(default_factory=list[list[int]])
    trace: BeamTrace = field(default_factory=BeamTrace)
    rules: BeamRules | None = None
    run: BeamRun | None = None

    def __post_init__(self) -> None:
        self.pages = [[] for _ in range(self.width)]

    @property
    def width(self) -> int:
        """Beams, which are the rows that it counts for."""
        return self.params.beam_width

    @property
    def held(self) -> list[int]:
        """All pages of its beams."""
        return [page for pages in self.pages for page in pages]

    def missing(self, num_pages: int) -> int:
        """Pages that its beams lack to have `num_pages` each."""
        return self.width * max(num_pages - len(self.pages[0]), 0)

    def grow(self, pages: Sequence[int]) -> None:
        """Gives each beam as many of some more pages."""
        for place, page in enumerate(pages):
            self.pages[place % self.width].append(page)

    def restart(self) -> None:
        """Back to the beginning."""
        self.pages = [[] for _ in range(self.width)]
        self.trace = BeamTrace()
        self.rules = self.run = None

    def take(self, step: BeamStep) -> None:
        """Takes in a step that was read, as NumPy arrays of this group alone."""
        self.trace.add(step.chosen.tokens[0].tolist(), step.chosen.parents[0].tolist())

    def found(self, step: BeamStep, stop_ids: set[int]) -> list[Hypothesis]:
        """The hypotheses of its last step, the best first.

        Args:
            step: as for `take`, which has taken it.
            stop_ids: tokens that end a beam.
        """
        best, found = step.hypotheses, list[Hypothesis]()
        for place in range(num_outputs(self.params)):
            length = int(best.lengths[0, place])
            score = float(best.scores[0, place])
            total = score * length**self.params.length_penalty
            if not best.present[0, place] or total < OUT / 2:
                break  # fewer continuations than beams
            tokens, _ = self.trace.hypothesis(
                int(best.parents[0, place]), int(best.tokens[0, place]), length
            )
            stopped = tokens[-1] in stop_ids
            found.append(
                Hypothesis(
                    tokens,
                    score=score,
                    cumulative_logprob=total,
                    finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
                )
            )
        return found
