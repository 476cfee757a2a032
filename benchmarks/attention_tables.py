"""The tables of attention, as Markdown, from rows of results."""

from collections.abc import Sequence

from benchmarks.tables import Row, markdown, shape


def attention(rows: Sequence[Row]) -> str:
    """One layer's decode attention over rows of one length, by scheme."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(shape(row), {})[row["scheme"]] = row
    header = (
        "batch x context", "unified, µs", "synchronised", "spread", "on the device, µs",
        "synchronised", "FlashInfer", "GB/s", "of the ceiling", "commit",
    )  # fmt: skip
    cells = (
        (
            name,
            f"{found['unified']['us']:.1f}",
            f"{found['synchronised']['us']:.1f}",
            f"{max(each['spread'] for each in found.values()):.0%}",
            f"{found['unified']['device_us']:.1f}",
            f"{found['synchronised']['device_us']:.1f}",
            f"{found['synchronised']['flashinfer_us']:.1f}",
            f"{found['synchronised']['gb_s']:,}",
            f"{found['synchronised']['fraction_of_ceiling']:.0%}",
            found["synchronised"]["commit"],
        )
        for name, found in lines.items()
    )
    return markdown(header, cells)


def in_turns(rows: Sequence[Row]) -> str:
    """One layer's decode attention beside that of another checkout, by scheme."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        name = row["case"].removeprefix("llama3_8b_")
        lines.setdefault(_shape(name), {})[row["scheme"]] = row
    other = rows[0]["other_commit"]
    header = ("batch x context", "unified, µs", other, "synchronised", other, "commit")
    cells = (
        (
            name,
            *(
                f"{found[scheme][way]:.1f}"
                for scheme in ("unified", "synchronised")
                for way in ("us", "other_us")
            ),
            found["unified"]["commit"],
        )
        for name, found in lines.items()
    )
    return markdown(header, cells)


def unequal(rows: Sequence[Row]) -> str:
    """One layer's attention over rows that decode, of unequal length or that share."""
    header = ("rows x tokens", "fdjax, µs", "on the device", "FlashInfer", "GB/s",
              "spread", "commit")  # fmt: skip
    cells = (
        (
            _rows(row["case"]),
            f"{row['us']:.1f}",
            _device(row),
            f"{row['flashinfer_us']:.1f}" if row.get("flashinfer_us") else "",
            f"{row['gb_s']:,}" if row.get("gb_s") else "",
            f"{row['spread']:.0%}",
            row["commit"],
        )
        for row in rows
        if "tflop_s" not in row
    )
    return markdown(header, cells)


def invariant(rows: Sequence[Row]) -> str:
    """One layer's attention with bits that depend on a row alone, and without."""
    header = ("rows x tokens, or prompts", "µs", "batch-invariant", "of it", "spread",
              "commit")  # fmt: skip
    cells = (
        (
            (_rows if case[0].isdigit() and "@" not in case else _prompts)(case),
            f"{row['us']:,.1f}",
            f"{row['invariant_us']:,.1f}",
            f"{row['ratio']:.2f}",
            f"{row['spread']:.0%}",
            row["commit"],
        )
        for row in rows
        for case in (row["case"],)
    )
    return markdown(header, cells)


def _rows(case: str) -> str:
    """`63x512+1x32768`, `64x8192-shared+1024` or `60x1016+2048@2048`, for readers."""
    first, _, rest = case.partition("+")
    if "-shared" in first:
        *groups, rows, shared = first.removesuffix("-shared").split("x")
        told = f"{rows} x ({int(shared):,} shared{rest and f' + {int(rest):,}'})"
        return f"{groups[0]} groups of {told}" if groups else told
    parts = [_shape(first)]
    if "@" in rest:
        parts.append(f"and {_prompts(rest)} of a prompt")
    elif rest:
        parts.append(_shape(rest))
    return ", ".join(parts)


def _shape(rows: str) -> str:
    """`63x512`, for readers."""
    count, length = rows.split("x")
    return f"{count} x {int(length):,}"


def shared_steps(rows: Sequence[Row]) -> str:
    """Whole steps of rows that share a prefix: read by each, and read once."""
    each, once = "read by each, ms", "read once, ms"
    header = ("rows x tokens", "tokens saved", each, once, "gain", "commit")
    cells = (
        (
            _sharing(row["case"]),
            f"{_saved(row['case']):,}",
            f"{row['ms_each']:.2f}",
            f"{row['ms_once']:.2f}",
            f"{row['faster_by']:.2f} x",
            row["commit"],
        )
        for row in rows
    )
    return markdown(header, cells)


def _sharing(case: str) -> str:
    """`64x8192+128`, for readers."""
    rows, shared, own = _numbers(case)
    return f"{rows} x ({shared:,} shared + {own:,})"


def _saved(case: str) -> int:
    """Tokens that are not read once more."""
    rows, shared, _ = _numbers(case)
    return (rows - 1) * shared


def _numbers(case: str) -> tuple[int, ...]:
    return tuple(map(int, case.replace("x", "+").split("+")))


UNIFIED = "-unified"


def prefills(rows: Sequence[Row]) -> str:
    """One layer's attention of new tokens, some of them after cached ones."""
    header = (
        "new tokens",
        "µs",
        "on the device",
        "TFLOP/s",
        "unified, µs",
        "on the device",
        "TFLOP/s",
        "gain",
        "FlashInfer's best, µs",
        "spread",
        "commit",
    )
    unified = {row["case"]: row for row in rows if row["case"].endswith(UNIFIED)}
    cells = (
        (
            _prompts(row["case"]),
            *_speed(row),
            *_speed(unified.get(row["case"] + UNIFIED)),
            _gain(row, unified.get(row["case"] + UNIFIED)),
            f"{row['flashinfer_us']:,.0f}" if row["flashinfer_us"] else "",
            f"{row['spread']:.0%}",
            row["commit"],
        )
        for row in rows
        if "tflop_s" in row and row["case"] not in unified
    )
    return markdown(header, cells)


def _speed(row: Row | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    return f"{row['us']:,.1f}", _device(row), f"{row['tflop_s']}"


def _device(row: Row) -> str:
    """From a call's first kernel to its last, where that was traced."""
    return f"{row['device_us']:,.1f}" if "device_us" in row else ""


def _gain(row: Row, unified: Row | None) -> str:
    return "" if unified is None else f"{row['us'] / unified['us'] - 1:+.1%}"


def _prompts(case: str) -> str:
    """`prefill-8x1024`, its `-group1`, `64@32704` or `64x4@1020`, for readers."""
    if "@" in case:
        new, before = case.split("@")
        told = _shape(new) if "x" in new else f"{int(new):,}"
        return f"{told} after {int(before):,}"
    shape, _, group = case.removeprefix("prefill-").partition("-group")
    heads = f", {group} query heads a key head" if int(group or 0) > 1 else ""
    return _shape(shape) + (", each head its own keys" if group == "1" else heads)


def pallas(rows: Sequence[Row]) -> str:
    """One layer's decode attention in Pallas: the device's time, by scheme."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(shape(row), {})[row["scheme"]] = row
    schemes = ("unified", "synchronised")
    cells = (
        (
            name,
            *(f"{found[s]['device_us']:.1f}" if s in found else "" for s in schemes),
            found["unified"]["commit"],
        )
        for name, found in lines.items()
    )
    return markdown(("batch x context", "unified, µs", schemes[1], "commit"), cells)
