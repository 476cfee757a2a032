"""The part `shapes` of `fdjax tune`: times GEMMs, one at a time, for each weight."""

import datetime
import pathlib
import time
from collections.abc import Sequence

from fdjax import device
from fdjax.cli import progress
from fdjax.cli.tuning_tables import show
from fdjax.errors import ConfigError
from fdjax.kernels.matmul import table, timing
from fdjax.kernels.matmul.tuning import Profile, WeightSpec, profile, refusals
from fdjax.kernels.tuning import files
from fdjax.models.linears import linears
from fdjax.serve.setup import Settings
from fdjax.version import __version__

_MEASURED_WITH = (
    "microseconds of one GEMM in a graph, each after the end of the one before"
)


def weights(
    models: Sequence[Settings],
    ms: Sequence[int],
    path: pathlib.Path,
    missing: bool,
) -> list[WeightSpec]:
    """The weights that `gemv` or `flat` serves, and a note where one does not.

    Args:
        models: whose weights.
        ms: rows of x.
        path: of the table.
        missing: without those that it has.

    Raises:
        ConfigError: there is none, or the table cannot be read.
    """
    known = table.updated(path, device.kind(), [])
    every = _every(models)
    if missing:
        rows = table.parse(known, path)
        every = [one for one in every if one.shape not in rows]
    return _tunable(every, ms)


def _every(models: Sequence[Settings]) -> list[WeightSpec]:
    """The weights of all models, each shape once."""
    found: dict[table.Shape, WeightSpec] = {}
    for settings in models:
        for weight in linears(settings.config, dtype=settings.dtype):
            shape = weight.shape
            # Tiles for a gate serve a plain GEMM too, and not the other way round.
            if shape not in found or (weight.gated and not found[shape].gated):
                found[shape] = weight
    return list(found.values())


def _tunable(every: Sequence[WeightSpec], ms: Sequence[int]) -> list[WeightSpec]:
    """The weights that `gemv` or `flat` serves, and a note where one does not.

    Raises:
        ConfigError: there is none.
    """
    refused = [(weight, refusals(weight, ms)) for weight in every]
    kept = [weight for weight, why in refused if len(why) < 2]
    if every and not kept:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in refused[0][1].items())
        raise ConfigError(
            f"there is nothing to tune on {device.platform()} ({device.kind()}): "
            f"{reasons}. Run it on an NVIDIA GPU of compute capability 9.0, with "
            "weights of bfloat16 or float16"
        )
    for weight, why in refused:
        reasons = "; ".join(f"{way}: {reason}" for way, reason in why.items())
        what = "is measured without" if weight in kept else "is left to XLA:"
        if reasons:
            name = f"{weight.name} [{weight.n}, {weight.k}]"
            progress.note(f"{name} {what} {reasons}")
    return kept


def measure(
    every: Sequence[WeightSpec],
    ms: Sequence[int],
    path: pathlib.Path,
    *,
    limit: float | None,
    plot: pathlib.Path | None,
    quiet: bool,
) -> None:
    """Times GEMMs, writes and shows what is chosen.

    Args:
        every: weights, as `weights` has them.
        ms: rows of x.
        path: of the table.
        limit: seconds after which no further weight is begun.
        plot: where to draw times and choices.
        quiet: nothing is shown.
    """
    profiles = _profiles(every, ms, path, limit=limit)
    progress.note(f"{len(profiles)} shapes written to {path}")
    if plot is not None and profiles:
        from fdjax.cli.tuning_plots import draw

        draw(profiles, plot)
    if not quiet:
        show(profiles)


def _profiles(
    every: Sequence[WeightSpec],
    ms: Sequence[int],
    path: pathlib.Path,
    *,
    limit: float | None,
) -> list[Profile]:
    """Every row is written as soon as it is there."""
    made_by = f"fdjax tune {__version__}: {_MEASURED_WITH}"
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiles: list[Profile] = []
    begun = time.monotonic()
    with progress.stepping(len(every) * len(ms), "measuring") as advance:
        for weight in every:
            if limit is not None and time.monotonic() - begun >= limit:
                break
            measured = profile(weight, ms, times=timing.Stopwatch, on_point=advance)
            row = measured.row(measured_with=made_by, date=date)
            document = table.updated(path, device.kind(), [row])
            path.write_text(files.to_json(document))
            profiles.append(measured)
    table.load.cache_clear()  # it has been read, as it was
    if left := every[len(profiles) :]:
        shapes = ", ".join(f"[{weight.n}, {weight.k}]" for weight in left)
        progress.note(
            f"left after {limit:g} s: {shapes}; --missing with the same --out goes on"
        )
    return profiles
