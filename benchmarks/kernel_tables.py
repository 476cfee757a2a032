"""The tables of single kernels, as Markdown, from rows of results."""

from collections.abc import Sequence

from benchmarks.tables import Row, markdown, shape


def gemms(rows: Sequence[Row]) -> str:
    """One GEMM alone: ours, cuBLAS's, and the time of its bytes."""
    sizes = sorted({row["m"] for row in rows})
    lines: dict[str, dict[int, str]] = {}
    for row in rows:
        told = f"{row['ours_us']:.1f} / {row['cublas_us']:.1f} / {row['floor_us']:.1f}"
        lines.setdefault(f"{row['shape']} [{row['n']}, {row['k']}]", {})[row["m"]] = (
            told
        )
    return markdown(
        ("µs: ours / cuBLAS / floor", *(f"M = {m}" for m in sizes)),
        ((name, *(found[m] for m in sizes)) for name, found in lines.items()),
    )


def draws(rows: Sequence[Row]) -> str:
    """One draw: the kernel's and XLA's time, by what is asked for."""
    counts = sorted({row["rows"] for row in rows})
    lines: dict[str, dict[int, str]] = {}
    for row in rows:
        name = row["asked"] + (", peaked" if row["logits"] == "peaked" else "")
        xla = row.get("reference_us")
        told = f"{row['cuda_us']:.1f}" + ("" if xla is None else f" / {xla:,.1f}")
        lines.setdefault(name, {})[row["rows"]] = told
    return markdown(
        ("µs: kernel / XLA", *(f"{count} rows" for count in counts)),
        ((name, *(found.get(c, "") for c in counts)) for name, found in lines.items()),
    )


def moves(rows: Sequence[Row]) -> str:
    """Pages copied in one call: the kernel's time and XLA's, and the kernel's rate."""
    header = ("pages", "µs", "XLA, µs", "GB/s", "of a copy's ceiling", "commit")
    cells = (
        (
            str(row["moves"]),
            f"{row['cuda_us']:.1f}",
            f"{row['reference_us']:,.1f}",
            f"{row['cuda_gb_s']:,}",
            f"{row['fraction_of_copy_ceiling']:.0%}",
            row["commit"],
        )
        for row in rows
    )
    return markdown(header, cells)


def traced(rows: Sequence[Row], kernel: str) -> str:
    """A kernel in traces of whole steps: how often, and what it costs them."""
    header = (
        "batch x context", "launches a step", "µs that it adds", "from start to end",
        "of a step", "commit",
    )  # fmt: skip
    cells = (
        (
            shape(row),
            f"{one['launches']:.0f}",
            f"{one['advance_us']:.1f}",
            f"{one['duration_us']:.1f}",
            f"{one['us_per_step'] / row['ms_per_step'] / 1000:.2%}",
            row["commit"],
        )
        for row in rows
        for one in row["kernels"]
        if f"::{kernel}::" in one["kernel"]
    )
    return markdown(header, cells)


def chains(rows: Sequence[Row]) -> str:
    """Whole steps layer by layer, and as one call of `layer_program`."""
    found = {(row["model"], row["layers"], row["batch"]): row for row in rows}
    batches = sorted({row["batch"] for row in rows})
    models = [m for m, how, batch in found if how == _APART and batch == batches[0]]
    header = (
        "model",
        *(f"{batch} x 1,024, ms" for batch in batches),
        f"prefill of {batches[-1]} x 1,024",
        "commit",
    )

    def told(model: str, batch: int, what: str, style: str) -> str:
        before, now = (found[model, how, batch][what] for how in (_APART, _ONE))
        return f"{before:{style}} → {now:{style}}"

    cells = (
        (
            model,
            *(told(model, batch, "ms_per_step", ".2f") for batch in batches),
            told(model, batches[-1], "prefill_ms", ",.0f"),
            found[model, _ONE, batches[0]]["commit"],
        )
        for model in models
    )
    return markdown(header, cells)


_APART, _ONE = "one by one", "one call"
