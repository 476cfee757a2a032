"""What `LLM` returns, in the words of vLLM."""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fdjax.engine.request import Logprob
from fdjax.generate.stopping import FinishReason
from fdjax.serve.turns.parts import Part

type FinishText = Literal["stop", "length", "error", "abort"]


@dataclass(frozen=True)
class Failure:
    """Why an output ends before its end.

    Attributes:
        code: for programs.
        message: for people.
    """

    code: Literal[
        "non_finite_logits", "grammar_too_slow", "request_timeout", "nothing_found"
    ]
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
    FinishReason.NOTHING_FOUND: Failure(
        "nothing_found",
        "the beam search has found no output: no token may come, or scores are too low "
        "to count; let allowed_token_ids, structured_outputs, bad_words and min_tokens "
        "allow some together, or use a length_penalty nearer to 0",
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
        stop_reason: the stop string, or the token of `stop_token_ids`, that ended it;
            `None` for any other end.
        score: of a beam search: see `BeamSearch`. Outputs have it once they have ended;
            `None` where the search has found fewer than were asked for.
    """

    index: int
    token_ids: list[int] = field(default_factory=list[int])
    text: str | None = None
    finish_reason: FinishText | None = None
    logprobs: list[Logprob] | None = None
    failure: Failure | None = None
    stop_reason: int | str | None = None
    score: float | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of all tokens, where the request asked for them."""
        if self.logprobs is None:
            return None
        return math.fsum(one.logprob for one in self.logprobs)

    def finished(self) -> bool:
        """Whether nothing more comes; a method, as in vLLM."""
        return self.finish_reason is not None

    def add(self, chunk: "Chunk") -> None:
        """Takes in new tokens."""
        self.token_ids += chunk.token_ids
        if self.text is not None and chunk.text is not None:
            self.text += chunk.text
        if self.logprobs is not None and chunk.logprobs is not None:
            self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason
        self.failure = chunk.failure
        self.stop_reason = chunk.stop_reason
        self.score = chunk.score


@dataclass
class Metrics:
    """When a request came, ran and made tokens; of all its samples together.

    Attributes:
        arrival_time: when it was made, in seconds since the epoch.
        queued_ts: the same by `time.monotonic`, as the next three.
        scheduled_ts: when a sample was let in first; `None` before, as the next two.
        first_token_ts: when the first token was read.
        last_token_ts: when the last one was.
        num_generation_tokens: tokens made.
    """

    arrival_time: float = field(default_factory=time.time)
    queued_ts: float = field(default_factory=time.monotonic)
    scheduled_ts: float | None = None
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    num_generation_tokens: int = 0

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from the request to its first token."""
        if self.first_token_ts is None:
            return None
        return self.first_token_ts - self.queued_ts

    def add(self, num_tokens: int, *, scheduled_ts: float | None) -> None:
        """Takes in new tokens, read now.

        Args:
            num_tokens: how many.
            scheduled_ts: when their sample was let in.
        """
        now_s = time.monotonic()
        if self.scheduled_ts is None:
            self.scheduled_ts = scheduled_ts
        if num_tokens:
            self.first_token_ts = self.first_token_ts or now_s
            self.last_token_ts = now_s
            self.num_generation_tokens += num_tokens


@dataclass
class Output:
    """What came of one prompt; equal to another that says the same.

    `token_ids`, `text`, `finish_reason`, `logprobs` and `failure` are those of the
    first sample.

    Attributes:
        index: place of the prompt in the call.
        prompt: the prompt's text, where it was given as text.
        prompt_token_ids: the prompt's tokens.
        outputs: a continuation for each of the `n` samples asked for; of a beam search
            the best first.
        request_id: counts the prompts that its `LLM` was given, from "0".
        metrics: when it ran.
        prompt_logprobs: one entry a token of the prompt, where the request asked for
            them; `None` for the first token, which nothing comes before.
        num_cached_tokens: tokens of the prompt whose keys and values were there
            already; `None` before it runs.
    """

    index: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[Completion]
    prompt_logprobs: list[Logprob | None] | None = None
    request_id: str = field(default="0", compare=False)
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    num_cached_tokens: int | None = field(default=None, compare=False)

    @property
    def finished(self) -> bool:
        """All samples have ended."""
        return all(sample.finished() for sample in self.outputs)

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
class BestSoFar:
    """The best of a beam search so far, ended or not; the next replaces it.

    Attributes:
        token_ids: of the output.
        text: of them; `None` without a tokenizer.
        score: see `BeamSearch`.
    """

    token_ids: list[int]
    text: str | None
    score: float


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
        stop_reason: see `Completion`.
        request_id: of the prompt's request.
        prompt_logprobs: see `Output`; with the first chunk.
        parts: of an assistant's turn, where somebody reads the text as one; `text` is
            then the content of it.
        embedding: the vector of the prompt, `[E]` or fewer, where that was asked for;
            then it is the only chunk.
        score: see `Completion`.
        finished: it is the last one of the prompt's samples together.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishText | None
    logprobs: list[Logprob] | None = None
    sample: int = 0
    failure: Failure | None = None
    stop_reason: int | str | None = None
    request_id: str | None = None
    prompt_logprobs: list[Logprob | None] | None = None
    parts: list[Part] | None = None
    best: BestSoFar | None = None
    embedding: np.ndarray | None = field(default=None, compare=False)
    score: float | None = None
    finished: bool = field(default=False, compare=False)

    @property
    def outputs(self) -> list[Completion]:
        """The sample it belongs to, by what is new of it: vLLM's `DELTA`."""
        return [
            Completion(
                self.sample,
                self.token_ids,
                self.text,
                self.finish_reason,
                self.logprobs,
                self.failure,
                self.stop_reason,
                self.score,
            )
        ]
