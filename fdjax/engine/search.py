"""`Search`: the beams of one request, as the host knows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fdjax.engine.beam_programs import Alike, Prepared
from fdjax.engine.judges import Judges
from fdjax.engine.matcher import Matcher
from fdjax.engine.request import Hypothesis, as_logprobs
from fdjax.engine.segments import Segments
from fdjax.generate.any_params import num_outputs
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_run import BeamRun, BeamStep, Judgement
from fdjax.generate.beam_state import OUT, BeamRules
from fdjax.generate.beam_trace import BeamTrace, TracedStep
from fdjax.generate.packed import Packed
from fdjax.generate.stopping import FinishReason


@dataclass(eq=False)
class Search:
    """A search that is under way, or waits.

    One that is put back begins anew: its steps are computed again from the prompt, and
    give the same beams, scores and hypotheses.

    Attributes:
        params: what is looked for.
        page_size: tokens of a page of the KV array.
        num_words: of a mask for the model's tokens.
        matcher: makes one for the beginning of an output; `None` where no text is
            looked at.
        programs: of its steps, and of those that others take with it.
        segments: the pages of its beams for the tokens after the prompt.
        traces: the steps read so far, of each of its diverse groups.
        num_told: steps that `untold` has told of; it stays, should it begin anew.
        dead: pages that no beam reads any more, until somebody gives them back.
        judges: of its candidates, where their texts are looked at.
        judgement: of those of the step that is launched next.
        held: its next step waits for that.
        rules: on the device, while it runs.
        run: likewise; what the last step left.
        run_width: beams that each of its groups has room for there.
        kind: what it has in common with searches whose steps may be its steps, once it
            has begun; `None`: it goes alone.
    """

    params: BeamSearchParams
    page_size: int
    num_words: int
    matcher: Callable[[], Matcher | None]
    programs: Prepared = field(default_factory=Prepared)
    segments: Segments = field(init=False)
    traces: list[BeamTrace] = field(init=False)
    num_told: int = field(init=False, default=0)
    dead: list[int] = field(init=False)
    judges: Judges | None = field(init=False)
    judgement: Judgement | None = field(init=False)
    held: bool = field(init=False)
    rules: Packed[BeamRules] | None = field(init=False)
    run: Packed[BeamRun] | None = field(init=False)
    run_width: int = field(init=False)
    kind: Alike | None = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def width(self) -> int:
        """Beams, which are the rows that it counts for."""
        return self.params.beam_width

    @property
    def pages(self) -> list[int]:
        """All pages of its beams."""
        return self.segments.held + self.dead

    @property
    def prompt(self) -> Sequence[int]:
        """None: no other sequence is of this group; its own one holds them."""
        return ()

    @property
    def is_coming(self) -> bool:
        """Nobody waits for it; see `Group`, as for the next three."""
        return False

    def seat(self) -> None:
        """Nothing is held yet."""

    def compute(self, pages: Sequence[int]) -> list[int]:
        """The sequence holds them for all beams."""
        del pages
        return []

    def leave(self) -> list[int]:
        """All pages of its beams."""
        return self.pages

    def move(self, moves: Mapping[int, int]) -> None:
        """See `Segments.move`; dead pages are held too."""
        self.segments.move(moves)
        self.dead = [moves.get(page, page) for page in self.dead]

    def restart(self) -> None:
        """Back to the beginning."""
        self.segments = Segments(self.width, self.page_size)
        self.traces = [BeamTrace() for _ in range(self.params.num_beam_groups)]
        self.dead = []
        first = self.matcher()
        self.judges = None if first is None else Judges(first, self.num_words)
        self.judgement, self.held = None, False
        self.rules = self.run = self.kind = None
        self.run_width = 0

    def begin(self, rules: Packed[BeamRules], run: Packed[BeamRun]) -> None:
        """Its first step is launched, and leaves these."""
        self.rules, self.run = rules, run
        self.run_width = run.shapes.tokens.shape[1]

    def launch(self) -> None:
        """A step is on its way."""
        self.held = self.judges is not None

    def settle(self, *, wait: bool) -> FinishReason:
        """Judges candidates that were read; why the search fails, if it does.

        Args:
            wait: for judges that do not know; else the search stays held.
        """
        judges = self.judges
        if judges is None or not self.held or not judges.has_candidates:
            return FinishReason.RUNNING
        if wait or judges.is_ready:
            found = judges.judgement()
            if isinstance(found, FinishReason):
                return found
            self.judgement, self.held = found, False
        return FinishReason.RUNNING

    def take(self, step: BeamStep, first: int, stop_ids: set[int]) -> None:
        """Takes in a step that was read, as NumPy arrays.

        Args:
            step: of all searches of a call.
            first: the first of its groups that is this search's.
            stop_ids: tokens that end a beam.
        """
        chosen = step.chosen
        if chosen is not None:
            # The first tokens are chosen before any is fed; where candidates are
            # judged, a step chooses first and then feeds.
            if len(self.traces[0]) and self.judges is None:
                self.segments.feed()
            own = chosen.parents[first : first + len(self.traces)]
            self.dead += self.segments.select(self._parents(own))
            for place, trace in enumerate(self.traces, start=first):
                trace.add(_traced(chosen, place))
            if self.judges is not None:  # such a search is alone in its call
                self.segments.feed()
                self.judges.chosen(chosen.places[0].tolist())
        if step.candidates is not None and self.judges is not None:
            self.judges.look(
                step.candidates,
                width=step.sums.shape[1],
                length=len(self.traces[0]) + 1,
                stop_ids=stop_ids,
            )

    def untold(self) -> int:
        """Tokens that its beams have now, had never before, and nobody was told of."""
        before = self.num_told
        self.num_told = max(before, len(self.traces[0]))
        return (self.num_told - before) * self.width

    def found(self, step: BeamStep, first: int, stop_ids: set[int]) -> list[Hypothesis]:
        """The hypotheses of its last step, the best first.

        Args:
            step: as for `take`, which has taken it.
            first: see there.
            stop_ids: see there.
        """
        found = [
            one
            for place, trace in enumerate(self.traces, start=first)
            for one in self._of_group(step, place, trace, stop_ids)
        ]
        found.sort(key=lambda one: -one.score)  # stable: the first group goes first
        return found[: num_outputs(self.params)]

    def best(self, step: BeamStep, first: int, stop_ids: set[int]) -> list[Hypothesis]:
        """The best so far, ended or not, if there is one.

        Args:
            step: see `take`.
            first: see there.
            stop_ids: see there.
        """
        best = [
            one
            for place, trace in enumerate(self.traces, start=first)
            for one in self._of_group(step, place, trace, stop_ids)[:1]
        ]
        for place, trace in enumerate(self.traces, start=first):
            total = float(step.sums[place, 0])
            if len(trace) and total > OUT / 2:
                tokens, _ = trace.path(0, len(trace))
                score = total / len(tokens) ** self.params.length_penalty
                best.append(Hypothesis(tokens, score, total, FinishReason.RUNNING))
        return [max(best, key=lambda one: one.score)] if best else []

    def _of_group(
        self, step: BeamStep, group: int, trace: BeamTrace, stop_ids: set[int]
    ) -> list[Hypothesis]:
        best = step.hypotheses
        found: list[Hypothesis] = []
        for place in range(self.params.group_width):
            if not best.present[group, place]:  # and has no length
                break
            length = int(best.lengths[group, place])
            score = float(best.scores[group, place])
            total = score * length**self.params.length_penalty
            if total < OUT / 2:
                break  # fewer continuations than beams
            parent = int(best.parents[group, place])
            token = int(best.tokens[group, place])
            tokens, parents = trace.hypothesis(parent, token, length)
            logprobs = None
            if best.logprobs is not None:
                logprobs = trace.logprobs(parents, float(best.logprobs[group, place]))
            found.append(
                Hypothesis(
                    tokens,
                    score=score,
                    cumulative_logprob=total,
                    finish_reason=self._reason((length, parent, token), stop_ids),
                    logprobs=logprobs
                    and as_logprobs(
                        logprobs.chosen,
                        logprobs.ids,
                        logprobs.values,
                        num_top=self.params.logprobs or 0,
                    ),
                )
            )
        return found

    def _reason(self, key: tuple[int, int, int], stop_ids: set[int]) -> FinishReason:
        if key[-1] in stop_ids:
            return FinishReason.STOP
        ended = {} if self.judges is None else self.judges.ended
        return ended.get(key, FinishReason.LENGTH)

    def _parents(self, parents: Any) -> list[int]:
        """By beam of all groups, whose pages lie one after the other."""
        width = self.params.group_width
        return [
            group * width + parent
            for group, row in enumerate(parents.tolist())
            for parent in row[:width]
        ]


def _traced(chosen: Any, group: int) -> TracedStep:
    tokens, parents = chosen.tokens[group].tolist(), chosen.parents[group].tolist()
    if chosen.logprobs is None or chosen.top is None:
        return TracedStep(tokens, parents)
    return TracedStep(
        tokens,
        parents,
        chosen.logprobs[group],
        chosen.top.ids[group],
        chosen.top.logprobs[group],
    )
