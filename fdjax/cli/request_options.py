"""Options of `fdjax serve`: what a request may ask for, and how much may wait."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fdjax.serve.http.limits import Limits

if TYPE_CHECKING:
    from fdjax.engine.limits import Limit
    from fdjax.serve.http.limits import Limits

_REQUESTS = "Requests"


@dataclass(frozen=True)
class RequestOptions:
    """What a request may ask for, and how much may wait for a row."""

    max_queued_requests: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Requests that may wait; more are refused with 503. By default 16 a "
            "sequence that runs, at least 1024; 0: no limit.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None
    max_queued_samples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Samples of them. By default 64 a sequence that runs, at least 4096; "
            "0: no limit.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens that they may have together, at least --max-model-len. By "
            "default up to 1024 a sample; 0: no limit.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None
    request_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Seconds until a request must have ended, in the queue and running; "
            "it then ends with an error. No limit if unset.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None
    max_answer_logprobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Log-probabilities of an answer: samples x tokens x those of a token.",
            rich_help_panel=_REQUESTS,
        ),
    ] = Limits.logprobs

    def waiting(self) -> "dict[str, Limit]":
        """The limits of what waits, as arguments of `fdjax.LLM`."""
        return {
            "max_queued_requests": _limit(self.max_queued_requests),
            "max_queued_samples": _limit(self.max_queued_samples),
            "max_queued_tokens": _limit(self.max_queued_tokens),
        }

    def limits(self) -> Limits:
        """The limits of a request."""
        from fdjax.serve.http.limits import Limits

        return Limits(logprobs=self.max_answer_logprobs, seconds=self.request_timeout)


def _limit(given: int | None) -> "Limit":
    return "auto" if given is None else given or None
