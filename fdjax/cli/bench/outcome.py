"""What became of one request: times, tokens, or an error."""

import itertools
from dataclasses import dataclass, field
from typing import Any

# In the order of reports; `Outcome.measure` has one value a request of each.
MEASURES = ("ttft", "itl", "tpot", "e2e")


@dataclass
class Outcome:
    """One request; times in seconds from the start of the run.

    Attributes:
        index: place in the order of arrival.
        due_s: when it arrived.
        input_tokens: of the prompt that was sent.
        asked_tokens: of output that were asked for.
        sent_s: when it was sent: after `due_s` where the client let it wait.
        token_s: when each event with tokens came; an event may hold several, and those
            that came together have one time.
        end_s: when the answer was complete, or had failed.
        prompt_tokens: as the server counts them; `None` where it does not say.
        output_tokens: as the server counts them; `None` where it does not say.
        error: what kind of failure, and `None` of a completed request.
        detail: more about the error.
    """

    index: int
    due_s: float
    input_tokens: int
    asked_tokens: int
    sent_s: float = 0.0
    token_s: list[float] = field(default_factory=list[float])
    end_s: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    detail: str = ""

    @property
    def late_s(self) -> float:
        """Seconds the request waited in the client."""
        return self.sent_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between events with tokens: the inter-token latencies."""
        return [after - before for before, after in itertools.pairwise(self.token_s)]

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, since the request was sent."""
        return self.token_s[0] - self.sent_s if self.token_s else None

    @property
    def itl_s(self) -> float | None:
        """The mean of the gaps; `None` where all tokens came in one event."""
        gaps = self.gaps_s
        return sum(gaps) / len(gaps) if gaps else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; `None` where it cannot be known."""
        if self.output_tokens is None or self.output_tokens < 2 or not self.gaps_s:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From the sending to the end of the answer."""
        return self.end_s - self.sent_s

    def measure(self, name: str) -> float | None:
        """One of `MEASURES`, in seconds; `None` where the request has none."""
        assert name in MEASURES, name
        return getattr(self, f"{name}_s")

    def to_json(self) -> dict[str, Any]:
        """Everything but the times of single events, and the measures."""
        fields = {n: value for n, value in vars(self).items() if n != "token_s"}
        measures = {f"{name}_s": self.measure(name) for name in MEASURES}
        return {**fields, "events": len(self.token_s), **measures}
