"""Beam searches of an `LLM`: from prompts to texts, the most likely ones first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fdjax.engine.request import Found, Hypothesis, Increment, Logprob, Request
from fdjax.engine.runs import Runs
from fdjax.generate.stopping import FinishReason
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.outputs import FAILURES, Failure, FinishText
from fdjax.serve.tokenizer import Tokenizer


@dataclass(frozen=True)
class BeamSequence:
    """One output that a search has found.

    Attributes:
        token_ids: the tokens made, the one that ended them included.
        text: their text, special tokens left out unless `skip_special_tokens` is false,
            and what ended it unless `include_stop_str_in_output`; `None` without a
            tokenizer.
        score: by which it was found: see `BeamSearch`.
        cum_logprob: sum of the log-probabilities of its tokens, after biases and
            penalties.
        finish_reason: "stop" or "length"; `None` of one that has not ended.
        logprobs: one entry a token, where the request asked for them: the model's own,
            before biases and penalties.
    """

    token_ids: list[int]
    text: str | None
    score: float
    cum_logprob: float
    finish_reason: FinishText | None
    logprobs: list[Logprob] | None = None


type OnBest = Callable[[int, BeamSequence], None]
"""Told a prompt's index and the best that a search for it has found so far."""


@dataclass
class BeamSearchOutput:
    """What a search has found for one prompt.

    Attributes:
        index: place of the prompt in the call.
        prompt: the prompt's text, where it was given as text.
        prompt_token_ids: the prompt's tokens.
        sequences: `n` outputs, the best first; fewer where there are no more, and none
            where the search failed.
        failure: why it has; a search that has found nothing at all has failed.
    """

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sequences: list[BeamSequence] = field(default_factory=list[BeamSequence])
    failure: Failure | None = None


def search(
    runs: Runs,
    tokenizer: Tokenizer | None,
    requests: Sequence[Request],
    outputs: Sequence[BeamSearchOutput],
    on_best: OnBest | None = None,
) -> None:
    """Runs searches to their ends and fills their outputs.

    Args:
        runs: of the engine.
        tokenizer: of the model.
        requests: searches, checked by the engine; `index` is that of their output.
        outputs: one for each.
        on_best: for requests that ask for it.

    Raises:
        QueueFullError: more than may wait.
    """
    for sequence, increment in runs.follow(runs.add(requests)):
        assert isinstance(increment, Found)
        output = outputs[increment.index]
        found = [
            beam_sequence(tokenizer, sequence.request, one)
            for one in increment.hypotheses
        ]
        reason = increment.finish_reason
        if reason is not None:
            output.sequences += found
            output.failure = FAILURES.get(reason)
        elif on_best is not None:
            on_best(increment.index, found[0])


def beam_sequence(
    tokenizer: Tokenizer | None, request: Request, found: Hypothesis
) -> BeamSequence:
    """What was found, as text.

    Args:
        tokenizer: of the model.
        request: the search.
        found: ended, or the best so far.
    """
    reason = found.finish_reason
    ended = reason != FinishReason.RUNNING
    if not ended:
        reason = FinishReason.LENGTH  # all of its text
    whole = Increment(request.index, found.token_ids, found.logprobs, reason)
    chunk = Detokenizer(tokenizer, request).chunk(whole)
    return BeamSequence(
        found.token_ids,
        chunk.text,
        found.score,
        found.cumulative_logprob,
        chunk.finish_reason if ended else None,
        chunk.logprobs,
    )
