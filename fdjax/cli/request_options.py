"""Options of `fdjax serve`: what a request may ask for, and how much may wait."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdjax.cli.choices import one_of
from fdjax.serve.http.limits import Limits

if TYPE_CHECKING:
    from fdjax.engine.limits import Limit
    from fdjax.serve.http.limits import Limits

_REQUESTS = "Requests"

ReasoningParser = Literal["qwen3", "deepseek_r1"]
ToolCallParser = Literal["hermes", "llama3_json", "mistral"]


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
    max_beam_width: Annotated[
        int,
        typer.Option(
            min=1,
            max=512,
            help="Beams of a search. Each counts as a sequence: --max-num-seqs must be "
            "as many.",
            rich_help_panel=_REQUESTS,
        ),
    ] = 64
    max_num_beams: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Beams of all searches that run: the other sequences are left to "
            "requests without. By default 7/8 of --max-num-seqs; 0: no limit.",
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

    tool_call_parser: Annotated[
        ToolCallParser | None,
        typer.Option(
            help="How the model writes calls of tools; found from its chat template if "
            "unset.",
            rich_help_panel=_REQUESTS,
            **one_of(ToolCallParser),
        ),
    ] = None
    reasoning_parser: Annotated[
        ReasoningParser | None,
        typer.Option(
            help="How the model writes its reasoning, which is split off; part of the "
            "answer if unset.",
            rich_help_panel=_REQUESTS,
            **one_of(ReasoningParser),
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool,
        typer.Option(
            "--enable-auto-tool-choice",
            help="vLLM's; taken and not needed: calls are found wherever they can be.",
            rich_help_panel=_REQUESTS,
        ),
    ] = False

    def waiting(self) -> "dict[str, Limit]":
        """The limits of what waits, as arguments of `fdjax.LLM`."""
        return {
            "max_queued_requests": _limit(self.max_queued_requests),
            "max_queued_samples": _limit(self.max_queued_samples),
            "max_queued_tokens": _limit(self.max_queued_tokens),
        }

    def beams(self) -> "dict[str, Limit]":
        """The limits of beam searches, as arguments of `fdjax.LLM`."""
        return {
            "max_beam_width": self.max_beam_width,
            "max_num_beams": _limit(self.max_num_beams),
        }

    def limits(self) -> Limits:
        """The limits of a request."""
        from fdjax.serve.http.limits import Limits

        return Limits(logprobs=self.max_answer_logprobs, seconds=self.request_timeout)


def _limit(given: int | None) -> "Limit":
    return "auto" if given is None else given or None
