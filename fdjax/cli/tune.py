"""`fdjax tune`: times GEMM kernels, one GEMM at a time, and writes what is chosen by.

The head and single calls choose by its inflection points; the one call of all layers
takes the launch configs of `flat`, and chooses by what `--chain` measures in steps.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fdjax.cli import progress
from fdjax.cli.errors import reported
from fdjax.cli.loading import configuration
from fdjax.cli.options import (
    SHIPPED,
    DebugOption,
    DtypeOption,
    JsonOption,
    RevisionOption,
)
from fdjax.cli.places import check_places
from fdjax.cli.writer import emit
from fdjax.version import __version__

if TYPE_CHECKING:
    from fdjax.kernels.matmul.tuning import Profile, WeightSpec
    from fdjax.serve.setup import Settings

_MEASURED_WITH = (
    "microseconds of one GEMM in a graph, each after the end of the one before"
)


def tune(
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
    m: Annotated[
        str,
        typer.Option("--m", help="Rows to measure; more than the most take XLA's dot."),
    ] = "1,2,4,8,16,32,64,128",
    missing: Annotated[
        bool, typer.Option("--missing", help="Leave out shapes that the file has.")
    ] = False,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds after which no further shape is begun; default: none."
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
    chain: Annotated[
        bool,
        typer.Option(
            "--chain",
            help="Measure steps of the first model, too: up to how many rows each "
            "kernel serves in the one call of all layers, and which of cuBLASLt's "
            "candidates. Not within --limit; --missing does not leave it out.",
        ),
    ] = False,
    dtype: DtypeOption = "auto",
    revision: RevisionOption = None,
    json_report: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure the GEMM kernels for a model's weights, and write a table of choices.

    For each shape of a weight, GEMV on CUDA cores serves M rows up to a first
    inflection point M1, the flat GEMM on tensor cores up to a second, M2, and
    XLA's dot above. Reads the configuration only; the weights are made up.

    M1 and M2 hold for the head, and for GEMMs that are calls of their own. The
    one call of all layers on Hopper GPUs (layer_program) takes the launch configs
    of the flat GEMM from this table. How many rows each kernel serves there is
    the same for all GEMMs, as kernels of one kind begin beside the end of each
    other, and stands in the part layer_program of the table: --chain measures it,
    by steps of four layers of the first model, and which of cuBLASLt's candidates
    is fastest in them at up to 1,024 rows.
    """
    ms = _parse_ms(m)
    with reported(debug=debug):
        from fdjax import device
        from fdjax.cli import tune_chain
        from fdjax.kernels.matmul import table
        from fdjax.kernels.tuning import files

        check_places(out, plot)
        path = out or files.user_path(device.kind())
        table.updated(path, device.kind(), [])
        models = model or [SHIPPED]
        weights = _weights(models, revision, dtype=dtype)
        if missing:
            known = table.parse(files.read(path), path)
            weights = [one for one in weights if (one.n, one.k) not in known]
        steps_of = _settings(models[0], revision, dtype=dtype) if chain else None
        if steps_of:  # refused before minutes of measuring, if at all
            tune_chain.check(steps_of.config, steps_of.dtype, path)
        profiles = _measure(_tunable(weights, ms), ms, path, limit=limit)
        progress.note(f"{len(profiles)} shapes written to {path}")
        if steps_of:
            tune_chain.measure(steps_of.config, steps_of.dtype, path, quiet=json_report)
        _show(profiles, path, plot=plot, json_report=json_report)


def _parse_ms(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"--m is {text!r}; write numbers from 1, as 1,8,64")
    return sorted(set(map(int, parts)))


def _settings(model: str, revision: str | None, *, dtype: str) -> "Settings":
    from fdjax.serve.setup import Settings

    place = configuration(model, revision)
    return Settings.of(place, dtype=dtype, softmax="synchronised")


def _weights(
    models: Sequence[str], revision: str | None, *, dtype: str
) -> "list[WeightSpec]":
    """The weights of all models, each shape once."""
    from fdjax.models.linears import linears

    found: dict[tuple[int, int], WeightSpec] = {}
    for model in models:
        settings = _settings(model, revision, dtype=dtype)
        for weight in linears(settings.config, dtype=settings.dtype):
            shape = weight.n, weight.k
            # Tiles for a gate serve a plain GEMM too, and not the other way round.
            if shape not in found or (weight.gated and not found[shape].gated):
                found[shape] = weight
    return list(found.values())


def _tunable(weights: "Sequence[WeightSpec]", ms: Sequence[int]) -> "list[WeightSpec]":
    """The weights that `gemv` or `flat` serves, and a note where one does not.

    Raises:
        ConfigError: there is none.
    """
    from fdjax import device
    from fdjax.errors import ConfigError
    from fdjax.kernels.matmul.tuning import refusals

    every = [(weight, refusals(weight, ms)) for weight in weights]
    kept = [weight for weight, refused in every if len(refused) < 2]
    if weights and not kept:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in every[0][1].items())
        raise ConfigError(
            f"there is nothing to tune on {device.platform()} ({device.kind()}): "
            f"{reasons}. Run it on an NVIDIA GPU of compute capability 9.0, with "
            "weights of bfloat16 or float16"
        )
    for weight, refused in every:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in refused.items())
        what = "is measured without" if weight in kept else "is left to XLA:"
        if reasons:
            name = f"{weight.name} [{weight.n}, {weight.k}]"
            progress.note(f"{name} {what} {reasons}")
    return kept


def _measure(
    weights: "Sequence[WeightSpec]",
    ms: Sequence[int],
    path: pathlib.Path,
    *,
    limit: float | None,
) -> "list[Profile]":
    """Every row is written as soon as it is there."""
    import datetime
    import time

    from fdjax import device
    from fdjax.kernels.matmul import table, timing
    from fdjax.kernels.matmul.tuning import profile
    from fdjax.kernels.tuning import files

    made_by = f"fdjax tune {__version__}: {_MEASURED_WITH}"
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiles: list[Profile] = []
    begun = time.monotonic()
    with progress.stepping(len(weights) * len(ms), "measuring") as advance:
        for weight in weights:
            if limit is not None and time.monotonic() - begun >= limit:
                break
            measured = profile(weight, ms, times=timing.Stopwatch, on_point=advance)
            row = measured.row(measured_with=made_by, date=date)
            document = table.updated(path, device.kind(), [row])
            path.write_text(files.to_json(document))
            profiles.append(measured)
    if left := weights[len(profiles) :]:
        shapes = ", ".join(f"[{weight.n}, {weight.k}]" for weight in left)
        progress.note(
            f"left after {limit:g} s: {shapes}; --missing with the same --out goes on"
        )
    return profiles


def _show(
    profiles: "Sequence[Profile]",
    path: pathlib.Path,
    *,
    plot: pathlib.Path | None,
    json_report: bool,
) -> None:
    if plot is not None and profiles:
        from fdjax.cli.tuning_plots import draw

        draw(profiles, plot)
    if json_report:
        emit(path.read_text())
    else:
        from fdjax.cli.tuning_tables import show

        show(profiles)
