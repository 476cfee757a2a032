"""What `LLM` returns, in the words of vLLM."""

from dataclasses import dataclass, field
from typing import Literal

from fdjax.engine.request import Logprob
from fdjax.generate.stopping import FinishReason

type FinishText = Literal["stop", "length", "error", "abort"]


@dataclass(frozen=True)
class Failure:
    """Why an output ends before its end.

    Attributes:
        code: for programs.
        message: for people.
    """

    code: Literal["non_finite_logits", "grammar_too_slow", "request_timeout"]
    message: str


FAILURES = {
    FinishReason.NON_FINITE: Failure(
        "non_finite_logits",
        "the model's logits are not finite (NaN or infinite), so no token can be "
        "drawn; check its weights, or compute with another dtype",
    ),
    FinishReason.SLOW_GRAMMAR: Failure(
        "grammar_too_slow",
        "structured_outputs: finding which tokens may come next takes too long; "
        "simplify the grammar, so that it reads a text in few ways",
    ),
    FinishReason.TIMED_OUT: Failure(
        "request_timeout",
        "the request was not done in the time that a request may take here; ask for "
        "fewer tokens or samples, or come when less waits",
    ),
}
"""By the engine's reasons for an end that are failures."""


@dataclass
class Completion:
    """One continuation of a prompt.

    Attributes:
        index: place among the prompt's samples.
        token_ids: the tokens made, the one that ended them included.
        text: their text, special tokens left out; `None` without a tokenizer.
        finish_reason: "stop", "length", "error", or "abort" where whoever made the
            request ended it; `None` while tokens are still coming.
        logprobs: one entry a token, where the request asked for them.
        failure: what "error" means.
    """

    index: int
    token_ids: list[int] = field(default_factory=list[int])
    text: str | None = None
    finish_reason: FinishText | None = None
    logprobs: list[Logprob] | None = None
    failure: Failure | None = None

    def add(self, chunk: "Chunk") -> None:
        """Takes in new tokens."""
        self.token_ids += chunk.token_ids
        if self.text is not None and chunk.text is not None:
            self.text += chunk.text
        if self.logprobs is not None and chunk.logprobs is not None:
            self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason
        self.failure = chunk.failure


@dataclass
class Output:
    """What came of one prompt.

    `token_ids`, `text`, `finish_reason`, `logprobs` and `failure` are those of the
    first sample.

    Attributes:
        index: place of the prompt in the call.
        prompt: the prompt's text, where it was given as text.
        prompt_token_ids: the prompt's tokens.
        outputs: a continuation for each of the `n` samples asked for.
    """

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[Completion]

    @property
    def token_ids(self) -> list[int]:
        """See `Completion`."""
        return self.outputs[0].token_ids

    @property
    def text(self) -> str | None:
        """See `Completion`."""
        return self.outputs[0].text

    @property
    def finish_reason(self) -> FinishText | None:
        """See `Completion`."""
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[Logprob] | None:
        """See `Completion`."""
        return self.outputs[0].logprobs

    @property
    def failure(self) -> Failure | None:
        """See `Completion`."""
        return self.outputs[0].failure


@dataclass(frozen=True)
class Chunk:
    """New tokens of one prompt, as they stream.

    Attributes:
        index: place of the prompt in the call.
        token_ids: tokens since the last chunk.
        text: the text they complete; characters are never split. `None` without a
            tokenizer.
        finish_reason: set in the last chunk of the sample.
        logprobs: one entry a token, where the request asked for them.
        sample: which of the prompt's samples.
        failure: what "error" means.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishText | None
    logprobs: list[Logprob] | None = None
    sample: int = 0
    failure: Failure | None = None
