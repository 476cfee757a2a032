"""Options of `fdjax serve`: what is computed together in a step."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from fdjax.cli.choices import one_of
from fdjax.engine.policy import PrefillOrder, StepPolicy

_STEPS = "Steps"


@dataclass(frozen=True)
class StepOptions:
    """How prompts and decoding share steps."""

    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a step: of prompts, and one of each sequence that decodes. "
            "By default 5120 on a GPU, 2048 on a CPU.",
            rich_help_panel=_STEPS,
        ),
    ] = None
    max_itl_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Milliseconds between two tokens of a sequence that prompts of others "
            "should not exceed: steps take fewer of their tokens. No target if unset.",
            rich_help_panel=_STEPS,
        ),
    ] = None
    prefill_order: Annotated[
        PrefillOrder,
        typer.Option(
            help="Of prompts: first come, first served, where a long one leaves half "
            "of a step to others; or the one that has the fewest tokens left first, "
            "which starves no long one.",
            rich_help_panel=_STEPS,
            **one_of(PrefillOrder),
        ),
    ] = StepPolicy.prefill_order
    mixed_steps: Annotated[
        bool,
        typer.Option(
            help="Prompts and decoding share steps; else they take turns.",
            rich_help_panel=_STEPS,
        ),
    ] = True
    shared_prefix_reads: Annotated[
        bool | None,
        typer.Option(
            help="Pages that sequences share are read once for all of them while they "
            "decode. More programs are compiled. By default on GPUs with kernels for "
            "it, and never with --batch-invariant.",
            rich_help_panel=_STEPS,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `fdjax.LLM`."""
        return asdict(self)
