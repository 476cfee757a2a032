"""The part `layer_program` of `fdjax tune`: times steps, for who serves in a chain."""

import pathlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import jax
from rich.table import Table

from fdjax.cli import progress
from fdjax.cli.tables import print_all, titled
from fdjax.cli.tuned_part import before, write
from fdjax.config import GatedMlp
from fdjax.engine.buckets import fine_ladder
from fdjax.generate import chain_times
from fdjax.kernels.layer_program.table import PART, ChainRows
from fdjax.kernels.tuning.chain import LIBRARY, MOST, Points, chosen, profile, serving
from fdjax.kernels.tuning.chain_candidates import Candidates, faster, merged
from fdjax.kernels.tuning.chain_gate import Gated, compared, with_gate
from fdjax.models.config import ModelConfig
from fdjax.models.linears import linears

ROWS = (1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
# Sizes of calls with prompts. In larger ones the library's first candidates are within
# a percent of the best (an H200).
SIZES = fine_ladder(ROWS[-1], 1024)
# Sizes whose tiles of gated GEMMs fill the SMs more and less.
GATED = (512, 640, 768, 832, 896, 960, 1024, 2048, 3072)


def check(config: ModelConfig, dtype: jax.typing.DTypeLike, path: pathlib.Path) -> None:
    """Says before anything is measured what `measure` would refuse.

    Args:
        config: the model.
        dtype: of its weights.
        path: of the table.

    Raises:
        Unsupported: the model has no such call here.
        ConfigError: the table cannot be read.
    """
    PART.load(path)
    chain_times.ChainTimes.check(config, dtype)


def measure(
    config: ModelConfig,
    dtype: jax.typing.DTypeLike,
    path: pathlib.Path,
    *,
    quiet: bool,
) -> None:
    """Times steps of a model, adds what was found to a device's table, and shows it.

    Args:
        config: the model.
        dtype: of its weights.
        path: of the table.
        quiet: nothing is shown.

    Raises:
        Unsupported: see `check`.
        ConfigError: likewise.
    """
    stood = before(path, PART)
    times = chain_times.ChainTimes(config, dtype, most_rows=ROWS[-1])
    shapes = _shapes(config, dtype)
    num_steps = len(ROWS) + len(SIZES) + len(GATED)
    with progress.stepping(num_steps, "measuring steps") as advance:
        points = profile(times, ROWS, stood, on_point=advance)
        found = chosen(points, stood)
        candidates = faster(times, SIZES, shapes, found, on_point=advance)
        every = merged(stood.candidates, candidates, SIZES, shapes)
        found = replace(found, candidates=every)
        if (gemm := _gated(config)) is not None:
            found = with_gate(
                found, compared(times, GATED, gemm, found, on_point=advance)
            )
    write(path, PART, _fields(found), "steps of four layers")
    if not quiet:
        print_all(_shown(points, found))
        progress.note(_told(candidates))
        filled = f"{found.persistent_from} thousandths"
        progress.note(f"gates are inside GEMMs whose tiles fill {filled} of the SMs")


def _shapes(
    config: ModelConfig, dtype: jax.typing.DTypeLike
) -> Sequence[tuple[int, int]]:
    """`[N, K]` of the layers' weights, each once."""
    layers = (one for one in linears(config, dtype=dtype) if one.name != "head")
    return [*dict.fromkeys((one.n, one.k) for one in layers)]


def _gated(config: ModelConfig) -> Gated | None:
    """The GEMM with a gate of its first layer, if that has one."""
    mlp = config.layers[0].mlp
    if not isinstance(mlp, GatedMlp):
        return None
    return Gated(mlp.up_size, mlp.activation, mlp.bias)


def _told(found: Candidates) -> str:
    each = ", ".join(
        f"{one} at M = {m} of [{n}, {k}]" for (m, n, k), one in found.items()
    )
    return f"of cuBLASLt's candidates, the first being 0: {each or 'the first'}"


def _fields(found: ChainRows) -> dict[str, Any]:
    fields = asdict(found)
    candidates = fields.pop("candidates")
    library = [
        {"m": m, "n": n, "k": k, "candidate": one}
        for (m, n, k), one in candidates.items()
    ]
    return {**fields, "library": library}


def _shown(points: Points, found: ChainRows) -> Table:
    up_to = (found.gemv_up_to, found.flat_up_to, found.gemm_up_to)
    told = ", ".join(
        f"{name} up to M = {most}" for name, most in zip(MOST, up_to, strict=True)
    )
    shown = titled(f"\nall layers: {told}, {LIBRARY} above; microseconds of a layer")
    names = (*MOST, LIBRARY)
    for name in ("M", *names, "serves"):
        shown.add_column(name, justify="right")
    for m, us in points.items():
        cells = [f"{us[name]:.1f}" if name in us else "" for name in names]
        shown.add_row(str(m), *cells, serving(m, up_to))
    return shown
