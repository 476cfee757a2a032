"""Requests and what comes back of them, in token ids."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from fdjax.engine.beam_programs import Prepared
from fdjax.engine.matcher import Grammar, Matcher
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.stopping import FinishReason


@dataclass(frozen=True)
class Logprob:
    """Log-probabilities of one position.

    Attributes:
        logprob: of the chosen token.
        top: token id to log-probability of the most likely tokens, in that order.
    """

    logprob: float
    top: dict[int, float]


def as_logprobs(
    chosen: np.ndarray, ids: np.ndarray, values: np.ndarray, *, num_top: int
) -> list[Logprob]:
    """Log-probabilities as users read them.

    Args:
        chosen: of the chosen tokens, `[T]`.
        ids: the most likely tokens of each position, `[T, N]`.
        values: their log-probabilities.
        num_top: how many of them are wanted.
    """
    tops = zip(ids[:, :num_top].tolist(), values[:, :num_top].tolist(), strict=True)
    return [
        Logprob(logprob, dict(zip(*top, strict=True)))
        for logprob, top in zip(chosen.tolist(), tops, strict=True)
    ]


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    Attributes:
        index: place in the order of the caller.
        prompt: token ids.
        params: how to continue it.
        max_tokens: longest output, once the model's own limit is counted in.
        grammar: what the output may be; `None` lets it be anything.
        beams: the beam search that it is, if it is one.
        pooling: what it makes of its prompt, if it continues none.
        programs: of the beam search, where they are compiled.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    grammar: Grammar | None = None
    beams: BeamSearchParams | None = None
    pooling: PoolingParams | None = None
    programs: Prepared | None = field(default=None, compare=False, repr=False)

    @property
    def num_rows(self) -> int:
        """Rows that it counts for while it runs."""
        return 1 if self.beams is None else self.beams.beam_width

    @property
    def limited_params(self) -> SamplingParams:
        """`params`, with the limits on its length that really hold."""
        return dataclasses.replace(
            self.params,
            max_tokens=self.max_tokens,
            min_tokens=min(self.params.min_tokens, self.max_tokens),
        )

    def sampled(self, params: SamplingParams) -> "Request":
        """Another sample of it, whose parameters differ in the seed alone."""
        return dataclasses.replace(self, params=params)

    def matcher(self) -> Matcher | None:
        """Of one output, at its beginning; `None` where it may be anything."""
        return None if self.grammar is None else self.grammar.matcher()

    @property
    def goes_in_batches(self) -> bool:
        """Whether its steps may be those of other searches too.

        Groups that are diverse look at each other's tokens, and a search that is judged
        waits for the host.
        """
        one_group = self.beams is not None and self.beams.num_beam_groups == 1
        return one_group and self.grammar is None

    @property
    def limited_beams(self) -> BeamSearchParams:
        """`beams`, with the limits on its length that really hold; it has some."""
        assert self.beams is not None, "asked of a beam search only"
        return dataclasses.replace(
            self.beams,
            max_tokens=self.max_tokens,
            min_tokens=min(self.beams.min_tokens, self.max_tokens),
        )

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose keys and values are kept; those of the last are never needed."""
        return len(self.prompt) + self.max_tokens - 1


@dataclass(slots=True)  # one a row and step; a frozen one takes three times as long
class Increment:
    """New tokens of one request; none where only now the end is known.

    Attributes:
        index: the request's.
        token_ids: tokens since the last increment.
        logprobs: one for each token, where the request asked for them.
        finish_reason: set in the last increment.
        prompt_logprobs: of the prompt's tokens, `None` for the first; with the first
            increment, where the request asked for them.
    """

    index: int
    token_ids: list[int]
    logprobs: list[Logprob] | None
    finish_reason: FinishReason | None
    prompt_logprobs: list[Logprob | None] | None = None

    @property
    def num_made(self) -> int:
        """Tokens that the engine has made since the last increment, of any output."""
        return len(self.token_ids)


@dataclass(slots=True)
class Tried(Increment):
    """A step of a beam search was read: each of its beams has a token more.

    None of them is of an output before the end, and few are then; but all were
    computed. Steps that are computed again, of a search that was put back, are not told
    again.

    Attributes:
        num_tokens: as many as there are beams.
    """

    num_tokens: int = 0

    @property
    def num_made(self) -> int:
        """Of all beams."""
        return self.num_tokens


@dataclass(frozen=True)
class Hypothesis:
    """An output that a beam search has found.

    Attributes:
        token_ids: the one that ended it among them.
        score: by which it was found: see `BeamSearch`.
        cumulative_logprob: sum of the log-probabilities of its tokens, after biases and
            penalties.
        finish_reason: `STOP` or `LENGTH`; `RUNNING` of one that has not ended.
        logprobs: the model's own of each token, where they were asked for.
    """

    token_ids: list[int]
    score: float
    cumulative_logprob: float
    finish_reason: FinishReason
    logprobs: list[Logprob] | None = None


@dataclass(slots=True)
class Found(Increment):
    """The last increment of a beam search, or the best so far.

    The last one's tokens and its reason are those of the best hypothesis. Where
    `stream_best` asks for them there are others before it, without tokens and without a
    reason, each of which replaces the one before.

    Attributes:
        hypotheses: the best first; none where the search failed. Before the end, the
            best alone: it may be a beam that runs.
    """

    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])

    @property
    def num_made(self) -> int:
        """None: see `Tried`, which has told of all."""
        return 0

    def shared(self, count: int) -> list[Increment]:
        """The last increment of each output; those that were not found have no tokens.

        Args:
            count: outputs, as many as hypotheses or more.
        """
        reason = self.finish_reason
        assert reason is not None, "the outputs are known at the end"
        outputs: list[Increment] = [
            FoundOutput(
                self.index,
                one.token_ids,
                one.logprobs,
                one.finish_reason,
                score=one.score,
            )
            for one in self.hypotheses
        ]
        nothing = None if self.logprobs is None else list[Logprob]()
        lacking = range(count - len(outputs))
        return outputs + [Increment(self.index, [], nothing, reason) for _ in lacking]


@dataclass(slots=True)
class FoundOutput(Increment):
    """One of the outputs that a beam search has found, whole.

    Attributes:
        score: by which it was found: see `BeamSearch`.
    """

    score: float = 0.0

    @property
    def num_made(self) -> int:
        """None: see `Tried`, which has told of all."""
        return 0


@dataclass(slots=True)
class Embedded(Increment):
    """The only increment of a request that pools its prompt.

    Attributes:
        embedding: the vector, `[E]` or fewer; not finite where the request failed.
    """

    embedding: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
