"""Writes the results tables of the README and the docs from the JSON in `results/`.

`python -m benchmarks.report` rewrites every block between its markers; a test holds
the files to what it would write.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import RESULTS

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
DECODE = RESULTS / "nvidia-h200" / "decode.json"
PAGES = ("README.md", "docs/performance.md")
BEGIN = "<!-- results: decode -->"
END = "<!-- /results -->"

HEADER = (
    "| model | batch x context | ms/step | tokens/s | of the read ceiling | spread "
    "| prefill, ms | commit |\n|---|---|---|---|---|---|---|---|"
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown for a list of results, and where they come from."""
    if not rows:
        return "No results yet."
    lines = "\n".join(_line(row) for row in rows)
    return f"{HEADER}\n{lines}\n\n{_provenance(rows)}"


def rewritten(text: str, block: str, *, begin: str = BEGIN) -> str:
    """`text` with `block` between the markers `begin` and `END`.

    Raises:
        ValueError: the markers are missing or in the wrong order.
    """
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the markers {begin} and {END} are missing")
    return f"{before}{begin}\n{block}\n{END}{after}"


def load_rows(path: pathlib.Path = DECODE) -> list[dict[str, Any]]:
    """The results of a file; none where the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else []


def _line(row: Mapping[str, Any]) -> str:
    cells = (
        row["model"],
        f"{row['batch']} x {row['context']:,}",
        f"{row['ms_per_step']:.2f}",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['fraction_of_ceiling']:.0%}",
        f"{row['spread']:.1%}",
        f"{row['prefill_ms']:,.0f}",
        row["commit"],
    )
    return f"| {' | '.join(cells)} |"


def _provenance(rows: Sequence[Mapping[str, Any]]) -> str:
    sources = sorted({(row["date"], row["jax"]) for row in rows})
    told = "; ".join(f"{date}, jax {jax}" for date, jax in sources)
    return f"Measured {told}."


def main() -> None:
    """Rewrites the blocks of all pages."""
    block = table(load_rows())
    for name in PAGES:
        page = REPOSITORY / name
        page.write_text(rewritten(page.read_text(), block))


if __name__ == "__main__":
    main()
