"""The tables of what other JAX stacks gain, as Markdown, from rows of results."""

from collections.abc import Sequence

from benchmarks.tables import NOTHING, Row, markdown, shape


def peers(rows: Sequence[Row]) -> str:
    """Decode attention over the same rows: a line for each case, a column a peer."""
    names = dict.fromkeys(row["peer"] for row in rows)
    found = {(shape(row), row["peer"]): row for row in rows}
    header = ("batch x context", *(f"{name}, µs" for name in names))
    cells = (
        (case, *(_time(found.get((case, name))) for name in names))
        for case in dict.fromkeys(map(shape, rows))
    )
    return markdown(header, cells)


def _time(row: Row | None) -> str:
    """Of a peer that ran."""
    return f"{row['us']:,.1f}" if row and row.get("us") else "not run"


def both_caches(rows: Sequence[Row]) -> str:
    """The device's times over fdjax's own cache, and that of ragged paged attention v3.

    Of all kernels of a call, and of the longest one, which is the attention.
    """
    found = {(shape(row), row["peer"]): row for row in rows}
    header = (
        "batch x context", "fdjax, µs", "of which attention", "rpa v3, µs",
        "of which attention", "by that of its own cache", "commit",
    )  # fmt: skip
    both = (
        (case, found[case, "fdjax"], found[case, "fdjax, rpa v3"])
        for case in dict.fromkeys(map(shape, rows))
    )
    cells = (
        (
            case,
            *(
                f"{row[name]:,.1f}"
                for row in (own, ragged)
                for name in ("device_us", "longest_us")
            ),
            f"{ragged['longest_us'] / own['longest_us']:.3f}",
            own["commit"],
        )
        for case, own, ragged in both
    )
    return markdown(header, cells)


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
