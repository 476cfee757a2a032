"""The tables of single kernels, as Markdown, from rows of results."""

from collections.abc import Sequence

from benchmarks.tables import Row, markdown, shape


def attention(rows: Sequence[Row]) -> str:
    """One layer's decode attention over rows of one length, by scheme."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(shape(row), {})[row["scheme"]] = row
    header = (
        "batch x context", "unified, µs", "synchronised", "FlashInfer", "GB/s",
        "of the ceiling", "commit",
    )  # fmt: skip
    cells = (
        (
            name,
            f"{found['unified']['us']:.1f}",
            f"{found['synchronised']['us']:.1f}",
            f"{found['synchronised']['flashinfer_us']:.1f}",
            f"{found['synchronised']['gb_s']:,}",
            f"{found['synchronised']['fraction_of_ceiling']:.0%}",
            found["synchronised"]["commit"],
        )
        for name, found in lines.items()
    )
    return markdown(header, cells)


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


def unequal(rows: Sequence[Row]) -> str:
    """One layer's attention over rows of unequal length."""
    header = ("rows", "fdjax, µs", "FlashInfer", "GB/s", "commit")
    cells = (
        (
            row["case"].replace("+", " + "),
            f"{row['us']:.1f}",
            f"{row['flashinfer_us']:.1f}" if row.get("flashinfer_us") else "",
            f"{row['gb_s']:,}" if row.get("gb_s") else "",
            row["commit"],
        )
        for row in rows
    )
    return markdown(header, cells)


def prefills(rows: Sequence[Row]) -> str:
    """One layer's attention of new tokens, some of them after cached ones."""
    header = (
        "new tokens",
        "µs",
        "TFLOP/s",
        "FlashInfer's best, µs",
        "spread",
        "commit",
    )
    cells = (
        (
            _prompts(row["case"]),
            f"{row['us']:,.1f}",
            f"{row['tflop_s']}",
            f"{row['flashinfer_us']:,.0f}" if row["flashinfer_us"] else "",
            f"{row['spread']:.0%}",
            row["commit"],
        )
        for row in rows
        if "tflop_s" in row
    )
    return markdown(header, cells)


def _prompts(case: str) -> str:
    """`prefill-8x1024` or `64@32704`, for readers."""
    if "@" in case:
        return " after ".join(f"{int(part):,}" for part in case.split("@"))
    rows, length = case.removeprefix("prefill-").split("x")
    return f"{rows} x {int(length):,}"
