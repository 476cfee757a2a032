"""`fdjax tune`'s findings as tables."""

from collections.abc import Sequence

from rich.table import Table

from fdjax.cli.tables import print_all, titled
from fdjax.kernels.matmul.params import padded_m
from fdjax.kernels.matmul.tuning import WAYS, Point, Profile, way_of

TITLES = {"gemv": "gemv", "flat": "flat", "reference": "XLA's dot"}
SHORT = {**TITLES, "reference": "XLA"}


def show(profiles: Sequence[Profile]) -> None:
    """Writes profiles to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    print_all(*map(_times, profiles))


def _times(profile: Profile) -> Table:
    """Microseconds over M, and who serves."""
    weight = profile.weight
    first, second = profile.inflection_points
    table = titled(
        f"\n{weight.name} [{weight.n}, {weight.k}]: gemv up to M = {first}, flat up "
        f"to {second}, XLA's dot above; microseconds"
    )
    for name in ("M", *TITLES.values(), "serves"):
        table.add_column(name, justify="right")
    table.add_column("flat's blocks")
    for point in profile.points:
        shown = [f"{point.us[way]:.2f}" if way in point.us else "" for way in WAYS]
        serves = SHORT[way_of(point.m, first, second)]
        table.add_row(str(point.m), *shown, serves, _blocks(profile, point))
    return table


def _blocks(profile: Profile, point: Point) -> str:
    if "flat" not in point.us:
        return ""
    flat = profile.flat[padded_m(point.m)]
    return (
        f"{flat.tiles} x {flat.tile_rows} rows, {64 * flat.boxes} columns, "
        f"{flat.splits} of K, {flat.stages} stages"
    )
