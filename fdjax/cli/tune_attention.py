"""The parts of `fdjax tune` that no model is needed for: the chip's and attention's.

Heads are those of Llama-3-8B, and of beams those of Llama-2-13B, whatever the model.
"""

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from rich.table import Table

from fdjax.cli import progress
from fdjax.cli.tables import print_all, titled
from fdjax.cli.tuned_part import before, write
from fdjax.errors import Unsupported
from fdjax.kernels import chip, ffi
from fdjax.kernels.decode_attention import handler
from fdjax.kernels.decode_attention import table as attention
from fdjax.kernels.shared_prefix import cuda
from fdjax.kernels.shared_prefix import table as shared
from fdjax.kernels.tuning import (
    attention_blocks,
    attention_times,
    occupancy,
    shared_times,
    shared_worth,
)
from fdjax.kernels.tuning.attention_blocks import MANY, NUM_KV_HEADS, Findings
from fdjax.kernels.tuning.thresholds import Comparison


class Measure(Protocol):
    """Measures a part, adds it to a device's table, and shows it unless quiet."""

    def __call__(self, path: pathlib.Path, *, quiet: bool) -> None:
        """See the class."""
        ...


_NEEDS: Mapping[str, Sequence[str]] = {
    chip.PART.name: (handler.NAME,),
    attention.PART.name: (handler.NAME,),
    shared.PART.name: (handler.NAME, cuda.NAME),
}
"""Handlers whose kernels are timed; of the chip one that says that this is a GPU."""


def check(name: str, path: pathlib.Path) -> None:
    """Says before anything is measured what measuring a part would refuse.

    Raises:
        Unsupported: its kernels do not run here.
        ConfigError: the table cannot be read.
    """
    for part in (chip.PART, attention.PART, shared.PART):
        part.load(path)
    for needed in _NEEDS[name]:
        if reason := ffi.refuse(needed, platform="gpu"):
            raise Unsupported(reason)
    if name == chip.PART.name:
        occupancy.of_devices()


def measure_chip(path: pathlib.Path, *, quiet: bool) -> None:
    """Asks the driver what fits the GPUs that are here, writes and shows it."""
    found = occupancy.sizes(occupancy.of_devices())
    clusters = {str(size): count for size, count in found.clusters.items()}
    fields = {"num_sms": found.num_sms, "clusters": clusters}
    write(path, chip.PART, fields, "cuOccupancyMaxActiveClusters")
    if not quiet:
        many = ", ".join(f"{count} of {size}" for size, count in clusters.items())
        progress.note(f"chip: {found.num_sms} SMs; clusters at once: {many} blocks")


def measure_blocks(path: pathlib.Path, *, quiet: bool) -> None:
    """Times attention of rows that decode, writes which rows are long and shows it."""
    sizes, stood = before(path, chip.PART), before(path, attention.PART)
    steps = attention_blocks.num_points(sizes, stood)
    with (
        chip.PART.using(sizes),
        progress.stepping(steps, "measuring attention") as advance,
    ):
        found = attention_blocks.measured(
            attention_times.BlockTimes(), sizes, stood, on_point=advance
        )
    how = f"layers of attention, {attention_times.NUM_HEADS} heads over {NUM_KV_HEADS}"
    write(path, attention.PART, asdict(found.blocks), how)
    if not quiet:
        print_all(_blocks_shown(found), _long_shown(found))


def measure_worth(path: pathlib.Path, *, quiet: bool) -> None:
    """Times attention whose rows share what they read, writes and shows thresholds."""
    stood = before(path, shared.PART)
    with (
        chip.PART.using(before(path, chip.PART)),
        attention.PART.using(before(path, attention.PART)),
        progress.stepping(shared_worth.NUM_POINTS, "measuring shared reads") as advance,
    ):
        points = shared_worth.measured(shared_times.SharedTimes(), on_point=advance)
    fields = asdict(shared_worth.worth(points, stood))
    write(path, shared.PART, fields, "layers of attention, and of beams")
    if not quiet:
        print_all(*(_worth_shown(name, points[name], fields[name]) for name in fields))


MEASURES: Mapping[str, Measure] = {
    chip.PART.name: measure_chip,
    attention.PART.name: measure_blocks,
    shared.PART.name: measure_worth,
}
"""What measures a part, by its name."""


def _blocks_shown(found: Findings) -> Table:
    chosen = found.blocks.blocks_two_an_sm
    shown = titled(
        f"\nattention of many rows: {chosen} blocks; microseconds of a layer"
    )
    for name in ("blocks", *(f"{rows} x {tokens:,}" for rows, tokens in MANY)):
        shown.add_column(name, justify="right")
    for count, us in found.many.items():
        shown.add_row(str(count), *(f"{one:.1f}" for one in us))
    return shown


def _long_shown(found: Findings) -> Table:
    """Where two blocks for each row and head fill the GPU, rows are long sooner."""
    sooner, others = found.blocks.long_from_if_two_fill, found.blocks.long_from
    shown = titled(f"\nattention of long rows: from {sooner:,} or {others:,} tokens")
    for name in ("rows", "tokens", "us if short", "us if long"):
        shown.add_column(name, justify="right")
    for rows, points in found.points.items():
        for point in points:
            shown.add_row(str(rows), *_cells(point))
    return shown


def _worth_shown(name: str, points: Sequence[Comparison], chosen: int) -> Table:
    shown = titled(f"\nread once: {name} = {chosen:,}; microseconds of a layer")
    for column in ("saved", "us if each reads", "us if once"):
        shown.add_column(column, justify="right")
    for point in sorted(points):
        shown.add_row(*_cells(point))
    return shown


def _cells(point: Comparison) -> tuple[str, str, str]:
    return f"{point.at:,}", f"{point.below_us:.1f}", f"{point.reached_us:.1f}"
