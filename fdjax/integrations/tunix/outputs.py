"""Prompts through the engine, to their ends."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment, Logprob
from fdjax.engine.runs import Runs
from fdjax.generate.params import SamplingParams
from fdjax.generate.stopping import FinishReason


@dataclass
class Output:
    """What was made of a prompt.

    Attributes:
        tokens: token ids.
        logprobs: of each of them, where they were asked for.
        prompt_logprobs: of the prompt's tokens but the first, likewise.
        finish_reason: why there are no more.
    """

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    prompt_logprobs: list[float] = field(default_factory=list[float])
    finish_reason: FinishReason = FinishReason.RUNNING

    def add(self, increment: Increment) -> None:
        """Takes in what is new."""
        self.tokens += increment.token_ids
        self.logprobs += _values(increment.logprobs or ())
        self.prompt_logprobs += _values(increment.prompt_logprobs or ())
        self.finish_reason = increment.finish_reason or self.finish_reason

    def strip(self, ends: Collection[int]) -> None:
        """Leaves out the token that has ended it, if one has."""
        if self.tokens and self.tokens[-1] in ends:
            self.tokens.pop()
            del self.logprobs[len(self.tokens) :]


def run(
    engine: Engine,
    runs: Runs,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
) -> list[Output]:
    """Continues prompts, as many together as there are rows.

    Args:
        engine: checks the requests.
        runs: of this engine.
        prompts: token ids.
        params: of each.

    Returns:
        Their outputs, in the same order.

    Raises:
        RequestError: a prompt or its parameters cannot be served.
        FloatingPointError: logits are not finite.
    """
    requests = [
        engine.request(index, prompt, each)
        for index, (prompt, each) in enumerate(zip(prompts, params, strict=True))
    ]
    outputs = [Output() for _ in requests]
    for _, increment in runs.follow(runs.add(requests)):
        outputs[increment.index].add(increment)
    for index, output in enumerate(outputs):
        if output.finish_reason == FinishReason.NON_FINITE:
            raise FloatingPointError(
                f"logits of prompt {index} are not finite after "
                f"{len(output.tokens)} tokens; its weights may have diverged"
            )
    return outputs


def _values(logprobs: Sequence[Logprob | None]) -> list[float]:
    return [each.logprob for each in logprobs if each is not None]
