"""What came of each prompt, gathered from its chunks, with the times it took."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fdjax.cli.prompts import Prompt

if TYPE_CHECKING:
    from fdjax.engine.request import Logprob
    from fdjax.serve.llm import LLM
    from fdjax.serve.outputs import Chunk


@dataclass
class Continuation:
    """One prompt's continuation, as `--json` writes it.

    Attributes:
        prompt: the prompt's text; `None` where it was given as token ids.
        prompt_token_ids: its tokens.
        seed: what its draws began from.
        token_ids: the tokens made.
        text: their text; `None` without a tokenizer.
        finish_reason: "stop", "length" or "error".
        logprobs: one entry a token, where asked for.
        error: what "error" means.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    seed: int
    token_ids: list[int] = field(default_factory=list[int])
    text: str | None = None
    finish_reason: str | None = None
    logprobs: "list[Logprob] | None" = None
    error: str | None = None

    def add(self, chunk: "Chunk") -> None:
        """Takes in new tokens."""
        self.token_ids += chunk.token_ids
        if chunk.text is not None:
            self.text = (self.text or "") + chunk.text
        if chunk.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *chunk.logprobs]
        self.finish_reason = chunk.finish_reason
        self.error = chunk.failure and chunk.failure.message

    def to_json(self) -> dict[str, Any]:
        """Fields in their order; log-probabilities by token."""
        fields = dict(vars(self))
        if self.error is None:
            del fields["error"]
        if self.logprobs is not None:
            fields["logprobs"] = logprobs_by_token(self.token_ids, self.logprobs)
        return fields


def logprobs_by_token(
    token_ids: Sequence[int], logprobs: "Sequence[Logprob]"
) -> list[dict[str, Any]]:
    """Log-probabilities as JSON has them."""
    return [
        {"token_id": token, "logprob": entry.logprob, "top": entry.top}
        for token, entry in zip(token_ids, logprobs, strict=True)
    ]


def empty_results(
    llm: "LLM", prompts: Sequence[Prompt], seeds: Sequence[int]
) -> list[Continuation]:
    """A result for each prompt, before its first token."""
    results: list[Continuation] = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        text = prompt if isinstance(prompt, str) else None
        if text is not None and llm.tokenizer is not None:
            results.append(Continuation(text, llm.tokenizer.encode(text), seed))
        else:
            results.append(Continuation(text, [int(token) for token in prompt], seed))
    return results


class Stopwatch:
    """When chunks came.

    The first launches of a process compile their programs: prefill before the first
    chunk, decode before the second of the same prompt. The speed counts what follows.

    Args:
        load_s: seconds that loading the model took, if it was loaded for this.
    """

    def __init__(self, load_s: float = 0.0) -> None:
        self.load_s = load_s
        self.num_tokens = 0
        self._start = time.perf_counter()
        self._first: float | None = None
        self._steady: float | None = None
        self._last = self._start
        self._steady_tokens = 0
        self._seen: set[int] = set()

    @property
    def is_steady(self) -> bool:
        """Every request's first program has run once."""
        return self._steady is not None

    def watch(self, chunks: "Iterator[Chunk]") -> "Iterator[Chunk]":
        """The same chunks, timed."""
        for chunk in chunks:
            self._record(chunk, time.perf_counter())
            yield chunk

    def timings(self) -> dict[str, float | None]:
        """Seconds, and tokens per second; `None` for what could not be measured."""
        rate = None
        if self._steady is not None and self._last > self._steady:
            rate = self._steady_tokens / (self._last - self._steady)
        first = None if self._first is None else self._first - self._start
        return {
            "load_s": round(self.load_s, 4),
            "first_token_s": None if first is None else round(first, 4),
            "total_s": round(self._last - self._start, 4),
            "tokens_per_s": None if rate is None else round(rate, 1),
        }

    def pace(self) -> str:
        """How many tokens came, when the first, and how fast the others."""
        timings = self.timings()
        speed = timings["tokens_per_s"]
        then = "" if speed is None else f", then {speed:.0f} tok/s"
        first = timings["first_token_s"] or 0.0
        return f"{self.num_tokens} tokens, first token after {first:.1f} s{then}"

    def _record(self, chunk: "Chunk", now: float) -> None:
        self.num_tokens += len(chunk.token_ids)
        self._last = now
        if self._first is None:
            self._first = now
        if self._steady is not None:
            self._steady_tokens += len(chunk.token_ids)
        elif chunk.index in self._seen:
            self._steady = now
        self._seen.add(chunk.index)
