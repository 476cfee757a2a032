"""`fdjax calibrate`: the bounds of the asynchronous softmax, from a text."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.cli import progress
from fdjax.cli.errors import reported
from fdjax.cli.options import (
    SHIPPED,
    DebugOption,
    DtypeOption,
    JsonOption,
    RevisionOption,
    command,
)
from fdjax.cli.places import check_places
from fdjax.cli.writer import emit

if TYPE_CHECKING:
    from fdjax.models.calibration import Calibration
    from fdjax.serve.calibrate import Measured

MAX_TOKENS = 65_536
CONTEXT = 1024


def _text(help_text: str) -> Any:
    return typer.Option(exists=True, dir_okay=False, readable=True, help=help_text)


@command
def calibrate(
    *,
    text: Annotated[pathlib.Path, _text("A text of the kind the model will meet.")],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="A folder, a hub id, or the model in the package."
        ),
    ] = SHIPPED,
    second_text: Annotated[
        pathlib.Path | None, _text("Another, to hold the bounds against.")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="Share of scores and of rows inside the ranges.")
    ] = 0.9999,
    margin: Annotated[
        float | None,
        typer.Option(help="Room beyond the ranges where float32 has it; 8 if not set."),
    ] = None,
    context: Annotated[
        int, typer.Option(min=2, help="Tokens of a piece of the text.")
    ] = CONTEXT,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="How much of each text to read.")
    ] = MAX_TOKENS,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where to write the calibration, for --softmax or a model."),
    ] = None,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where to draw the histograms; needs matplotlib."),
    ] = None,
    dtype: DtypeOption = "auto",
    revision: RevisionOption = None,
    json_report: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find out where a model's attention scores lie, and bounds for its softmax.

    Decoding takes the softmax relative to a constant, and computes a row again only
    where its largest score leaves the bounds. The file goes into the model's folder as
    softmax.json, or to `fdjax generate --softmax`.
    """
    with reported(debug=debug):
        from fdjax.models.calibration import MARGIN
        from fdjax.serve.calibrate import calibration_of

        check_places(out, plot)
        texts = [text] if second_text is None else [text, second_text]
        first, *others = _measure(
            texts, model, revision, dtype=dtype, context=context, max_tokens=max_tokens
        )
        calibration = calibration_of(
            first,
            others,
            model=model,
            coverage=coverage,
            margin=MARGIN if margin is None else margin,
        )
        _write(calibration, first, out=out, plot=plot, json_report=json_report)


def _measure(
    texts: list[pathlib.Path],
    model: str,
    revision: str | None,
    *,
    dtype: str,
    context: int,
    max_tokens: int,
) -> "list[Measured]":
    from fdjax.serve.calibrate import load_for_calibration, measure

    with progress.loading(model) as report:
        decoder, tokenizer = load_for_calibration(
            model, dtype=dtype, revision=revision, on_progress=report
        )
    context = min(context, decoder.config.max_position)
    with progress.counting(len(texts) * max_tokens, "reading") as advance:
        return [
            measure(
                decoder,
                tokenizer,
                path,
                context=context,
                max_tokens=max_tokens,
                on_progress=advance,
            )
            for path in texts
        ]


def _write(
    calibration: "Calibration",
    measured: "Measured",
    *,
    out: pathlib.Path | None,
    plot: pathlib.Path | None,
    json_report: bool,
) -> None:
    if out is not None:
        out.write_text(calibration.to_json())
    if plot is not None:
        from fdjax.cli.plots import draw

        draw(calibration, measured, plot)
    if json_report:
        emit(calibration.to_json())
    else:
        from fdjax.cli.calibration_tables import show

        show(calibration)
