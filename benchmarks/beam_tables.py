"""Tables of what `benchmarks.beams` has measured."""

from collections.abc import Sequence

from benchmarks.tables import Row, markdown

PEERS = ("transformers", "vLLM")
LENGTHS = (1024, 128)  # tokens in and out


def steps(rows: Sequence[Row]) -> str:
    """A step of beams, beside one of as many ordinary rows, and those of others."""
    found = _by_shape(rows, "steps")
    header = ("prompts x beams", "ms/step", "as many rows", "of it", "spread",
              *(f"{peer}, faster by" for peer in PEERS), "commit")  # fmt: skip
    cells: list[Sequence[str]] = []
    for (engine, prompts, beams), row in found.items():
        if engine != "fdjax" or not beams:
            continue
        own, plain = row["ms_per_step"], found.get(("fdjax", prompts * beams, 0))
        peers = (found.get((peer, prompts, beams)) for peer in PEERS)
        cells.append(
            (
                f"{prompts} x {beams}",
                f"{own:.2f}",
                "" if plain is None else f"{plain['ms_per_step']:.2f}",
                "" if plain is None else f"{own / plain['ms_per_step']:.2f}",
                _spread(row),
                *(_beside(peer, own) for peer in peers),
                row["commit"],
            )
        )
    return markdown(header, cells)


def throughput(rows: Sequence[Row]) -> str:
    """Requests a second by prompts at a time, and another's."""
    found = _by_shape([row for row in rows if row.get("model") == "llama3-8b"], "fig9")
    header = ("prompts x beams", "requests/s", "spread", "transformers", "more by",
              "commit")  # fmt: skip
    cells: list[Sequence[str]] = []
    for (engine, prompts, beams), row in found.items():
        if engine != "fdjax":
            continue
        own, peer = row["requests_per_s"], found.get(("transformers", prompts, beams))
        others = ("", "")
        if peer is not None:
            rate = peer["requests_per_s"]
            others = (f"{rate:.2f}", f"{own / rate:.1f} x")
        shape, spread = f"{prompts} x {beams}", _spread(row)
        cells.append((shape, f"{own:.2f}", spread, *others, row["commit"]))
    return markdown(header, cells)


def _spread(row: Row) -> str:
    return "one run" if row["spread"] is None else f"{row['spread']:.1%}"


def attention(rows: Sequence[Row]) -> str:
    """Attention alone, of the prompts of so many searches and their beams."""
    header = ("prompts x beams", "µs", "GB/s", "of the ceiling", "spread", "commit")
    cells = (
        (
            f"{prompts} x {beams}",
            f"{row['us']:.1f}",
            f"{row['gb_s']:,.0f}",
            f"{row['fraction_of_ceiling']:.0%}",
            f"{row['spread']:.0%}",
            row["commit"],
        )
        for (_, prompts, beams), row in _by_shape(rows, "fig6").items()
    )
    return markdown(header, cells)


def _by_shape(rows: Sequence[Row], case: str) -> dict[tuple[str, int, int], Row]:
    """Those of a case, by engine without its version, prompts and beams.

    The file may have others beside them, of other lengths.
    """
    return {
        (row["engine"].partition(" ")[0], row["prompts"], row["beams"]): row
        for row in rows
        if row["case"] == case and (row["context"], row["tokens"]) == LENGTHS
    }


def _beside(peer: Row | None, own: float) -> str:
    if peer is None:
        return ""
    return f"{peer['ms_per_step']:.1f}, {peer['ms_per_step'] / own:.1f} x"
