"""`QueueLimits`: how much may wait for a row."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fdjax.errors import ConfigError, QueueFullError, RequestError

# A queue of this many requests a row is emptied in the time of as many requests.
_REQUESTS_A_ROW = 16
_SAMPLES_A_ROW = 64
# Enough for a load test that sends all it has at once, also where rows are few.
_LEAST_REQUESTS = 1024
_LEAST_SAMPLES = 4096
# A token waits in about 50 bytes of the host's memory.
_MEAN_TOKENS = 1024
_LEAST_LONGEST = 16
# Of the room that others would still find, what one tenant may have of it.
_TIMES_OTHERS_ROOM = 7

type Limit = int | Literal["auto"] | None


@dataclass(frozen=True)
class QueueLimits:
    """What may wait for a row together; `None` lets any number wait.

    Attributes:
        requests: as clients send them.
        samples: of them.
        tokens: that the samples have to prefill; a prompt counts for each sample.
    """

    requests: int | None = None
    samples: int | None = None
    tokens: int | None = None

    @staticmethod
    def of(
        *,
        max_num_seqs: int,
        max_model_len: int,
        requests: Limit = "auto",
        samples: Limit = "auto",
        tokens: Limit = "auto",
    ) -> "QueueLimits":
        """Limits as given; "auto" is for a server that strangers send requests to.

        Raises:
            ConfigError: a request that the model can serve could never wait.
        """
        usual = max(_SAMPLES_A_ROW * max_num_seqs, _LEAST_SAMPLES)
        if requests == "auto":
            requests = max(_REQUESTS_A_ROW * max_num_seqs, _LEAST_REQUESTS)
        if samples == "auto":
            samples = usual
        if tokens == "auto":
            tokens = max(
                usual * min(max_model_len, _MEAN_TOKENS), _LEAST_LONGEST * max_model_len
            )
        limits = QueueLimits(requests, samples, tokens)
        limits._check_model(max_model_len)
        return limits

    def __str__(self) -> str:
        """For a log."""
        told = (
            "any number of" if x is None else str(x) for x in dataclasses.astuple(self)
        )
        return "{} requests, {} samples and {} tokens may wait".format(*told)

    def check(self, waiting: "Load", more: "Load", own: "Load | None" = None) -> None:
        """Refuses what may not wait beside what waits.

        A tenant that has something there already leaves an eighth to others, and a
        second one an eighth of that: whoever asks without end keeps nobody out
        (dynamic thresholds, as of buffers that queues share).

        Args:
            waiting: of all.
            more: what would like to.
            own: of what waits, the part of the same tenant; `None` where there are
                no tenants.

        Raises:
            QueueFullError: it may later.
            RequestError: it may never.
        """
        for name in ("requests", "samples", "tokens"):
            limit: int | None = getattr(self, name)
            if limit is None:
                continue
            now, added = getattr(waiting, name), getattr(more, name)
            held = 0 if own is None else getattr(own, name)
            left = limit - now - added
            if added > limit:
                remedy = "n" if name == "samples" else "prompt or n"
                raise RequestError(
                    f"{remedy} asks for {added} {name} to wait together, but "
                    f"max_queued_{name} is {limit}; ask for less at once"
                )
            if left < 0:
                raise QueueFullError(
                    f"{now} {name} wait, and {limit} may; this request has {added} "
                    "more; try later"
                )
            if not leaves_room(held, added, left=left):
                raise QueueFullError(
                    f"{held} {name} of your key wait; with {added} more only {left} of "
                    f"{limit} would be left to others; try later"
                )

    def _check_model(self, max_model_len: int) -> None:
        for name, limit in (
            ("max_queued_requests", self.requests),
            ("max_queued_samples", self.samples),
        ):
            if limit is not None and limit < 1:
                raise ConfigError(f"{name} is {limit}; use a whole number from 1")
        if self.tokens is not None and self.tokens < max_model_len:
            raise ConfigError(
                f"max_queued_tokens is {self.tokens}, but one prompt may have almost "
                f"max_model_len, which is {max_model_len}; use at least that, or lower "
                "max_model_len"
            )


def leaves_room(held: int, added: int, *, left: int) -> bool:
    """Whether a tenant may have more of what all share.

    Args:
        held: by the tenant; one that holds nothing may.
        added: that it asks for.
        left: to others then.
    """
    return not held or held + added <= _TIMES_OTHERS_ROOM * left


@dataclass(frozen=True)
class Load:
    """What waits, or would like to.

    Attributes:
        requests: see `QueueLimits`, as for the others.
        samples: as above.
        tokens: as above.
    """

    requests: int = 0
    samples: int = 0
    tokens: int = 0

    def plus(self, other: "Load") -> "Load":
        """Both together."""
        return Load(
            self.requests + other.requests,
            self.samples + other.samples,
            self.tokens + other.tokens,
        )

    def minus(self, other: "Load") -> "Load":
        """What is left of it without the other."""
        return self.plus(Load(-other.requests, -other.samples, -other.tokens))


NOTHING = Load()
