"""What the report draws: all charts of the docs, each of them by its results."""

from benchmarks import report


def test_no_chart_is_drawn_by_anything_else():
    """One that is not listed grows stale, and no test sees it."""
    folder = report.REPOSITORY / "docs" / "plots"
    files = {f"docs/plots/{file.name}" for file in folder.glob("*.svg")}
    assert files == {*report.CHARTS}


def test_charts_stand_below_a_table():
    shown = report._shown("| a |", {"one.svg": "the first", "two.svg": "another"})
    assert shown == "| a |\n\n![the first](plots/one.svg)\n\n![another](plots/two.svg)"
