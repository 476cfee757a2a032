"""The tables of the docs, as Markdown, from rows of results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

type Row = Mapping[str, Any]

NOTHING = "No results yet."


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *others])


def shape(row: Row) -> str:
    """Rows times tokens of a decode step."""
    return f"{row['batch']} x {row['context']:,}"


def provenance(rows: Sequence[Row]) -> str:
    """When and with what rows were measured."""
    sources = sorted({(row["date"], row["jax"]) for row in rows})
    told = "; ".join(f"{date}, jax {jax}" for date, jax in sources)
    return f"Measured {told}."


def decode(rows: Sequence[Row]) -> str:
    """Steps, their share of the ceiling, and where the figures come from."""
    if not rows:
        return NOTHING
    header = (
        "model", "batch x context", "ms/step", "tokens/s", "of the read ceiling",
        "spread", "prefill, ms", "commit",
    )  # fmt: skip
    cells = (
        (
            row["model"],
            shape(row) + ("" if _is_synchronised(row) else ", unified maximum"),
            f"{row['ms_per_step']:.2f}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['fraction_of_ceiling']:.0%}",
            f"{row['spread']:.1%}",
            f"{row['prefill_ms']:,.0f}",
            row["commit"],
        )
        for row in rows
    )
    return f"{markdown(header, cells)}\n\n{provenance(rows)}"


def beside(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    """Steps beside those of another engine, and how long the reading alone takes."""
    pairs = [*paired(rows, peers)]
    engine = pairs[0][1]["engine"]
    gains = [peer["ms_per_step"] / row["ms_per_step"] - 1 for row, peer in pairs]
    header = (
        "batch x context", "fdjax, ms/token", f"{engine}, ms/token", "faster by",
        "reading alone, ms",
    )  # fmt: skip
    cells = (
        (
            shape(row),
            f"**{row['ms_per_step']:.2f}**",
            f"{peer['ms_per_step']:.2f}",
            f"{gain:.0%}",
            f"{row['fraction_of_ceiling'] * row['ms_per_step']:.2f}",
        )
        for (row, peer), gain in zip(pairs, gains, strict=True)
    )
    best = max(row["fraction_of_ceiling"] for row, _ in pairs)
    told = (
        f"Tokens come {min(gains):.0%} to {max(gains):.0%} faster than from {engine}, "
        f"at up to {best:.0%} of what reading weights and KV allows."
    )
    return f"{markdown(header, cells)}\n\n{told}"


def paired(rows: Sequence[Row], peers: Sequence[Row]) -> Iterable[tuple[Row, Row]]:
    """Each step with the other engine's of the same shape, where it has one.

    Not those with a unified maximum: the other engine's softmax is synchronised.
    """
    named = ("model", "batch", "context")
    others = {
        tuple(peer[name] for name in named): peer
        for peer in peers
        if peer["what"] == "decode"
    }
    for row in filter(_is_synchronised, rows):
        if (peer := others.get(tuple(row[name] for name in named))) is not None:
            yield row, peer


def _is_synchronised(row: Row) -> bool:
    return row.get("softmax", "synchronised") == "synchronised"


def whole(
    serving: Sequence[Row],
    start: Sequence[Row],
    trace: Sequence[Row],
    peers: Sequence[Row],
) -> str:
    """Throughput, steps of unequal rows and the start, beside another engine's."""
    runs = [row for row in serving if "requests_per_s" in row]
    other = {peer["what"]: peer for peer in peers}
    (ready,) = start
    step = {row["engine"]: row for row in trace}
    load = f"{runs[0]['requests']} x ({runs[0]['input_tokens']:,} to "
    load += f"{runs[0]['output_tokens']}) at once"
    header = ("", "fdjax", other["serving"]["engine"], "commit")
    cells = [
        (
            f"{load}, requests/s",
            _range(runs, "requests_per_s", ".1f"),
            f"{other['serving']['requests_per_s']:.1f}",
            runs[0]["commit"],
        ),
        (
            "the same, output tokens/s",
            _range(runs, "output_tokens_per_s", ",.0f"),
            f"{other['serving']['output_tokens_per_s']:,.0f}",
            runs[0]["commit"],
        ),
        (
            f"a step of {step['fdjax']['rows']} rows as long as a trace's, ms",
            f"{step['fdjax']['ms_per_step']:.2f}",
            f"{step['vllm']['ms_per_step']:.2f}",
            step["fdjax"]["commit"],
        ),
        (
            "start to ready with what the last start kept, s",
            f"{min(ready['warm_s']):.1f} to {max(ready['warm_s']):.1f}",
            f"{other['start']['warm_s']:.0f}",
            ready["commit"],
        ),
        (
            "start to ready with nothing kept, s",
            f"{ready['cold_s']:.1f}",
            "",
            ready["commit"],
        ),
    ]
    return markdown(header, cells)


def _range(rows: Sequence[Row], name: str, form: str) -> str:
    values = sorted(row[name] for row in rows)
    ends = (f"{values[0]:{form}}", f"{values[-1]:{form}}")
    return " to ".join(dict.fromkeys(ends))


LOADS = {
    "conv-12": "12 a second",
    "conv-12-short": "12 a second, short",
    "conv-20": "20 a second",
    "conv-20-short": "20 a second, short",
    "conv-512": "512 at once",
    "conv-512-short": "512 at once, short",
}
"""Loads of conversations, by their names in the results."""
PERCENTILES = ("p50", "p90", "p99")


def online(rows: Sequence[Row]) -> str:
    """First tokens and those after them under loads, beside another engine's."""
    pairs = {load: loaded(rows, load) for load in LOADS}
    measures = {"ttft_ms": "first token, ms", "tpot_ms": "each after it, ms"}
    peer = engine_name(next(iter(pairs.values()))[1])
    header = ("load", f"p50 / p90 / p99 of the {measures['ttft_ms']}", peer,
              measures["tpot_ms"], peer, "requests/s", peer, "commit")  # fmt: skip
    cells = (
        (
            LOADS[load],
            *(
                " / ".join(
                    f"{value:,.{1 if value < 10 else 0}f}" for value in one[name]
                )
                for name in measures
                for one in (row, other)
            ),
            *(f"{one['requests_per_s']:.1f}" for one in (row, other)),
            row["commit"],
        )
        for load, (row, other) in pairs.items()
    )
    return markdown(header, cells)


def over_http(rows: Sequence[Row]) -> str:
    """Loads over HTTP, and the same requests to an engine in the client's process."""
    header = ("load", "way", "p50 / p90 / p99 of the first token, ms",
              "each after it, ms", "gaps, ms", "requests/s")  # fmt: skip
    cells = (
        (
            LOADS[row["load"]],
            row["way"],
            *(
                " / ".join(f"{value:.1f}" for value in row[name])
                for name in ("ttft_ms", "tpot_ms", "gap_ms")
            ),
            f"{row['requests_per_s']:.2f}",
        )
        for row in rows
    )
    return f"{markdown(header, cells)}\n\n{provenance(rows)}"


def loaded(rows: Sequence[Row], load: str) -> tuple[Row, Row]:
    """What a load was served like: prompts beside decoding, and by another engine."""
    own = [row for row in rows if row["load"] == load]
    (row,) = (row for row in own if row.get("mixed_steps"))
    (peer,) = (row for row in own if row["engine"] != "fdjax")
    return row, peer


def engine_name(peer: Row) -> str:
    """Of another engine, with its version."""
    names = {"vllm": "vLLM"}
    version = peer["version"].rpartition(".")[0]
    return f"{names[peer['engine']]} {version}"


def by_batch(rows: Sequence[Row], first: str) -> str:
    """Milliseconds a step: a line for each value of a field, a column a batch.

    Behind them is the commit, or that of each batch where they differ.
    """
    batches = sorted({row["batch"] for row in rows})
    lines: dict[str, dict[int, Row]] = {}
    for row in rows:
        lines.setdefault(row[first], {})[row["batch"]] = row
    cells = (
        (
            name.replace("_", " "),
            *(
                f"{found[batch]['ms_per_step']:.2f}" if batch in found else ""
                for batch in batches
            ),
            _commits([found[batch]["commit"] for batch in batches if batch in found]),
        )
        for name, found in lines.items()
    )
    table = markdown((first, *map(str, batches), "commit"), cells)
    return f"{table}\n\n{provenance(rows)}"


def _commits(of_each: Sequence[str]) -> str:
    return of_each[0] if len({*of_each}) == 1 else " / ".join(of_each)


def on_a_cpu(rows: Sequence[Row]) -> str:
    """The small model beside transformers: all runs, as one machine's speed changes."""
    lines: dict[tuple[int, str], dict[str, list[float]]] = {}
    for row in rows:
        whose = "transformers" if "system" in row else "fdjax"
        for what, name in (("step", "ms_per_step"), ("prefill", "prefill_ms")):
            found = lines.setdefault((row["batch"], what), {})
            found.setdefault(whose, []).append(row[name])
    header = ("ms, fastest to slowest of the runs", "fdjax", "transformers")
    return markdown(
        header,
        (
            (
                f"{what}, {batch} row{'s' if batch > 1 else ''}",
                *(_spread(found[whose]) for whose in header[1:]),
            )
            for (batch, what), found in lines.items()
        ),
    )


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
