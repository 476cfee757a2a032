"""`fdjax tune`: measures kernels, and writes what they are chosen by."""

import pathlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from fdjax.cli import progress
from fdjax.cli.choices import one_of
from fdjax.cli.errors import reported
from fdjax.cli.given import given
from fdjax.cli.loading import configuration
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
    from fdjax.serve.setup import Settings

type Measure = Callable[[], None]

PartName = Literal[
    "chip", "shapes", "layer_program", "decode_attention", "shared_prefix"
]
"""In the order in which they are measured: launch configs follow from those before."""
_ROWS = "shapes"
_OF_MODELS = (_ROWS, "layer_program")
_READ_BY = {
    **dict.fromkeys(("model", "dtype", "revision"), _OF_MODELS),
    **dict.fromkeys(("m", "limit", "plot"), (_ROWS,)),
}
"""Of parameters that not all parts read, those that do."""
# The kernels take 64. What is above only shows how XLA's dot goes on, and x of as many
# rows is made here: 1 GB at 8,192 of 14,336 numbers.
_MOST_ROWS = 8192


@command
def tune(
    context: typer.Context,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A folder, a config.json, a hub id, or the model in the package; may "
            "be repeated.",
            show_default=SHIPPED,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="A part of the table to measure; may be repeated. shapes is of each "
            "model's GEMMs, layer_program of the first model, and the others of the "
            "device. Default: all that can be measured.",
            **one_of(PartName),
        ),
    ] = None,
    m: Annotated[
        str,
        typer.Option("--m", help="Rows to measure; more than the most take XLA's dot."),
    ] = "1,2,4,8,16,32,64,128",
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Leave out shapes and parts that the file has."),
    ] = False,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds after which no further shape is begun, counted from the "
            "first; default: none. Other parts take as long as they take.",
        ),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="The table to write or to add to; by default the user's, where every "
            "command finds it."
        ),
    ] = None,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(help="Where to draw times and choices; needs matplotlib."),
    ] = None,
    dtype: DtypeOption = "auto",
    revision: RevisionOption = None,
    json_report: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure kernels on this GPU, and write the table that they are chosen by.

    shapes: for each shape of a weight, GEMV on CUDA cores serves M rows up to a
    first inflection point M1, the flat GEMM on tensor cores up to a second, M2,
    and XLA's dot above. M1 and M2 hold for the head, and for GEMMs that are calls
    of their own. Reads the configuration only; the weights are made up.

    layer_program: the one call of all layers on Hopper GPUs takes the launch
    configs of the flat GEMM from shapes. How many rows each kernel serves there is
    the same for all GEMMs, as kernels of one kind begin beside the end of each
    other. It is found by steps of four layers of the first model, and so is which
    of cuBLASLt's candidates is fastest in them at up to 1,024 rows.

    chip: the SMs, and how many clusters of blocks they run at once.
    decode_attention: from how many tokens on rows take larger blocks, and how many
    blocks serve many rows. shared_prefix: how much must be saved for what rows
    share to be read once. These need no model.
    """
    ms = _parse_ms(m)
    _refuse_unread(context, part or get_args(PartName))
    with reported(debug=debug):
        from fdjax import device
        from fdjax.cli.tuned_part import check_table
        from fdjax.kernels.matmul import table
        from fdjax.kernels.tuning import files

        check_places(out, plot)
        path = out or files.user_path(device.kind())
        check_table(path, is_named=out is not None)
        known = table.updated(path, device.kind(), []) if missing else {}
        names = _wanted(part, known)
        models = [
            _settings(one, revision, dtype=dtype)
            for one in (model or [SHIPPED] if {*names} & {*_OF_MODELS} else [])
        ]
        asked = _Asked(models, ms, path, missing, limit, plot, quiet=json_report)
        # Refused before minutes of measuring, if at all.
        prepared = [_prepared(name, asked, is_named=bool(part)) for name in names]
        for measure in prepared:
            measure()
        if json_report:
            emit(path.read_text())


@dataclass(frozen=True)
class _Asked:
    """What is asked for, of whatever part.

    Attributes:
        models: whose GEMMs are measured, and steps of the first.
        ms: rows of x.
        path: of the table.
        missing: without shapes that it has.
        limit: seconds after which no further shape is begun.
        plot: where to draw GEMMs' times.
        quiet: nothing is shown.
    """

    models: "Sequence[Settings]"
    ms: Sequence[int]
    path: pathlib.Path
    missing: bool
    limit: float | None
    plot: pathlib.Path | None
    quiet: bool


def _parse_ms(text: str) -> list[int]:
    parts = [part.strip().lstrip("0") for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise typer.BadParameter(f"--m is {text!r}; write numbers from 1, as 1,8,64")
    for part in parts:  # by its length first: Python does not read any number of digits
        if len(part) > len(str(_MOST_ROWS)) or int(part) > _MOST_ROWS:
            shown = part if len(part) <= 20 else f"{part[:20]}..."
            raise typer.BadParameter(
                f"--m has {shown}; it takes 1 to {_MOST_ROWS:,} rows, and all above 64 "
                "have XLA's dot alone"
            )
    return sorted(set(map(int, parts)))


def _refuse_unread(context: typer.Context, parts: Sequence[str]) -> None:
    """Refuses the first option that no part to be measured reads.

    Args:
        context: of the command.
        parts: that are asked for.

    Raises:
        BadParameter: one is given.
    """
    unread = [name for name, readers in _READ_BY.items() if not {*parts} & {*readers}]
    for name in unread:
        readers = " and ".join(_READ_BY[name])
        for option in given(context, (name,)):
            raise typer.BadParameter(
                f"{option} is read by the measurement of {readers} only, and --part "
                f"names {', '.join(parts)}; leave {option} out, or name {readers}"
            )


def _settings(model: str, revision: str | None, *, dtype: str) -> "Settings":
    from fdjax.serve.setup import Settings

    place = configuration(model, revision)
    return Settings.of(place, dtype=dtype, softmax="synchronised")


def _wanted(named: Sequence[str] | None, known: Container[str]) -> list[str]:
    """The parts to measure, in order; of those known only rows may be missing."""
    every = [one for one in get_args(PartName) if one in (named or get_args(PartName))]
    return [one for one in every if one == _ROWS or one not in known]


def _prepared(name: str, asked: _Asked, *, is_named: bool) -> Measure:
    """What measures a part, writes and shows it.

    One that nobody has named, and that cannot be measured here, is left out with a
    note; but of GEMMs it is an error, since nothing of this is for such a device.

    Raises:
        ConfigError: it cannot be measured here, or the table cannot be read.
    """
    from fdjax.errors import ConfigError, Unsupported

    try:
        return _measure_of(name, asked)
    except Unsupported as error:
        told = f"the part {name} has nothing to measure: {error}"
        if is_named:
            raise ConfigError(told) from error
    return partial(progress.note, f"{told}; it is left out")


def _measure_of(name: str, asked: _Asked) -> Measure:
    """As `_prepared`.

    Raises:
        ConfigError: see there.
        Unsupported: it cannot be measured here.
    """
    from fdjax.cli import tune_attention, tune_chain, tune_gemms

    path, quiet = asked.path, asked.quiet
    if name == _ROWS:
        weights = tune_gemms.weights(asked.models, asked.ms, path, asked.missing)
        return partial(
            tune_gemms.measure,
            weights,
            asked.ms,
            path,
            limit=asked.limit,
            plot=asked.plot,
            quiet=quiet,
        )
    if name == "layer_program":
        config, dtype = asked.models[0].config, asked.models[0].dtype
        tune_chain.check(config, dtype, path)
        return partial(tune_chain.measure, config, dtype, path, quiet=quiet)
    tune_attention.check(name, path)
    return partial(tune_attention.MEASURES[name], path, quiet=quiet)
