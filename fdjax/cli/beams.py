"""`fdjax generate --beams`: the most likely continuations instead of drawn ones."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fdjax.cli import progress
from fdjax.cli.errors import FAILED, in_options, option, show_error
from fdjax.cli.results import Continuation, empty_results, logprobs_by_token
from fdjax.cli.writer import TextWriter, emit
from fdjax.errors import RequestError

if TYPE_CHECKING:
    from fdjax.cli.prompts import Prompt
    from fdjax.generate.beam_params import BeamSearchParams
    from fdjax.serve.beam_search import BeamSearchOutput, BeamSequence
    from fdjax.serve.llm import LLM

_PANEL = "Beam search"
_EARLY: dict[str, Any] = {"false": False, "true": True, "never": "never"}


@dataclasses.dataclass(frozen=True)
class BeamOptions:
    """What to search for; without `beams` there is no search."""

    beams: Annotated[
        int | None,
        typer.Option(
            help="Search with so many beams and write the best text found.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Above 0 prefers long texts, below 0 short ones; 1 if unset.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    early_stopping: Annotated[
        Literal["false", "true", "never"] | None,
        typer.Option(
            help="Whether as many texts as beams are enough; false if unset.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    num_beam_groups: Annotated[
        int | None,
        typer.Option(
            help="Groups of beams that avoid each other's tokens; 1 if unset.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    diversity_penalty: Annotated[
        float | None,
        typer.Option(help="By how much they do; 0 if unset.", rich_help_panel=_PANEL),
    ] = None
    show_best: Annotated[
        bool,
        typer.Option(
            help="On stderr, the best text so far with each step, and its score.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `fdjax.LLM`: nobody else is there who could wait."""
        return {} if self.beams is None else {"max_beam_width": self.beams}

    def params(self, given: dict[str, Any]) -> "BeamSearchParams | None":
        """What to search for.

        Args:
            given: arguments of `SamplingParams` that were asked for.

        Raises:
            typer.BadParameter: a value is out of range, or a search knows no such; or
                there is no search, and something is asked of one.
        """
        from fdjax.generate.beam_params import BeamSearchParams

        search = self._given()
        if self.beams is None:
            self._refuse(search)
            return None
        known = {one.name for one in dataclasses.fields(BeamSearchParams)}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise typer.BadParameter(
                f"{option(unknown[0])} is for drawn texts, and --beams draws none; "
                "leave out one"
            )
        try:
            return BeamSearchParams(**given, beam_width=self.beams, **search)
        except RequestError as error:
            raise typer.BadParameter(in_options(error)) from None

    def _given(self) -> dict[str, Any]:
        """Arguments of `BeamSearchParams` that were asked for."""
        fields: dict[str, Any] = {
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping and _EARLY[self.early_stopping],
            "num_beam_groups": self.num_beam_groups,
            "diversity_penalty": self.diversity_penalty,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _refuse(self, search: dict[str, Any]) -> None:
        """Refuses what is for a search where there is none."""
        for name in (*search, *["show_best"] * self.show_best):
            raise typer.BadParameter(
                f"{option(name)} is for a beam search; give --beams, or leave it out"
            )


def write_beams(
    llm: "LLM",
    prompts: "Sequence[Prompt]",
    params: "BeamSearchParams",
    *,
    json_lines: bool,
    show_best: bool,
) -> None:
    """Searches, and writes what was found: the best texts, or all as JSON.

    Args:
        llm: the model.
        prompts: texts or token ids.
        params: what to search for.
        json_lines: all that was found, with scores.
        show_best: the best so far on stderr, as the search goes on.

    Raises:
        typer.Exit: a search has failed; the others are written.
    """
    with progress.Waiting("searching"):
        on_best = _show_best if show_best else None
        outputs = llm.beam_search(list(prompts), params, on_best=on_best)
    if json_lines:
        for output in outputs:
            emit(json.dumps(_fields(output), ensure_ascii=True) + "\n")
    else:
        writer = TextWriter(_best(llm, prompts, outputs))
        writer.update()
        writer.close()
    failures = {one.failure.message for one in outputs if one.failure is not None}
    for message in sorted(failures):
        show_error(message)
    if failures:
        raise typer.Exit(FAILED)


def _show_best(index: int, best: "BeamSequence") -> None:
    """A line of its own, marked: the last one need not be the text found."""
    text = json.dumps(best.text or best.token_ids, ensure_ascii=False)
    typer.echo(f"[best so far of prompt {index}, {best.score:.4f}] {text}", err=True)


def _best(
    llm: "LLM", prompts: "Sequence[Prompt]", outputs: "Sequence[BeamSearchOutput]"
) -> list[Continuation]:
    results = empty_results(llm, prompts, [0] * len(prompts))
    for result, output in zip(results, outputs, strict=True):
        result.finish_reason = "error"
        if output.sequences:
            best = output.sequences[0]
            result.token_ids, result.text = best.token_ids, best.text
            result.finish_reason = best.finish_reason
    return results


def _fields(output: "BeamSearchOutput") -> dict[str, Any]:
    return {
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "beams": [_beam(one) for one in output.sequences],
    }


def _beam(found: "BeamSequence") -> dict[str, Any]:
    fields = dict(vars(found))
    if found.logprobs is None:
        del fields["logprobs"]
    else:
        fields["logprobs"] = logprobs_by_token(found.token_ids, found.logprobs)
    return fields
