"""The tables of what other JAX stacks gain, as Markdown, from rows of results."""

from collections.abc import Mapping, Sequence

from benchmarks.tables import NOTHING, Row, markdown, shape


def peers(rows: Sequence[Row]) -> str:
    """Decode attention over the same rows: a line for each case, a column a peer.

    Where the device's own times are there, they stand in brackets, and the last column
    has the longest kernel's over the cache of ragged paged attention v3 by that over
    fdjax's own.
    """
    names = dict.fromkeys(row["peer"] for row in rows)
    found = {(shape(row), row["peer"]): row for row in rows}
    traced = any("device_us" in row for row in rows)
    unit = "µs (on the device)" if traced else "µs"
    header = ("batch x context", *(f"{name}, {unit}" for name in names))
    cells = (
        (
            case,
            *(_time(found.get((case, name))) for name in names),
            *([_ratio(found, case)] if traced else []),
        )
        for case in dict.fromkeys(map(shape, rows))
    )
    return markdown((*header, *(["rpa v3 by own"] if traced else [])), cells)


def _time(row: Row | None) -> str:
    """Of a peer that ran."""
    if not (row and row.get("us")):
        return "not run"
    device = f" ({row['device_us']:,.1f})" if "device_us" in row else ""
    return f"{row['us']:,.1f}{device}"


def _ratio(found: Mapping[tuple[str, str], Row], case: str) -> str:
    """Of the longest kernels over two caches."""
    both = (found.get((case, name), {}) for name in ("fdjax, rpa v3", "fdjax"))
    ragged, own = (row.get("longest_us") for row in both)
    return f"{ragged / own:.3f}" if ragged and own else "not run"


def inside_sgl_jax(rows: Sequence[Row]) -> str:
    """A line for each number of rows, both backends beside each other."""
    found = {(row["batch"], row["backend"]): row for row in rows}
    header = (
        "rows x context", "sgl-jax's own, ms a step", "fdjax", "own, tokens/s",
        "fdjax", "commit",
    )  # fmt: skip
    both = (
        (found[n, "native"], found[n, "fdjax"]) for n in sorted({n for n, _ in found})
    )
    cells = (
        (
            shape(ours),
            f"{own['ms_per_step']:.1f}",
            f"{ours['ms_per_step']:.1f}",
            f"{own['tokens_per_s']:,.0f}",
            f"{ours['tokens_per_s']:,.0f}",
            ours["commit"],
        )
        for own, ours in both
    )
    return markdown(header, cells)


def rollouts(rows: Sequence[Row]) -> str:
    """A line for each engine of a model."""
    if not rows:
        return NOTHING
    header = (
        "model", "prompts x (in + out)", "rollout", "tokens/s", "first call, s",
        "`sync_weights`, ms", "most memory, MiB", "commit",
    )  # fmt: skip
    cells = (
        (
            row["model"],
            f"{row['prompts']} x ({row['prompt_tokens']} + {row['new_tokens']})",
            _rollout(row),
            f"{row['tokens_per_s']:,.0f}",
            f"{row['first_call_s']:.1f}",
            f"{row['sync_ms']:.0f}",
            f"{row['peak_mib']:,.0f}",
            row["commit"],
        )
        for row in rows
    )
    return markdown(header, cells)


def _rollout(row: Row) -> str:
    """Which engine, and how many steps its calls have, where that was recorded."""
    steps = row.get("steps_per_launch")
    return row["engine"] if steps is None else f"{row['engine']}, {steps} steps a call"
