"""A run as a picture: what is drawn, and that everything can be."""

import pathlib

import pytest

from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.serve_plots import draw, under_way


def outcome(sent_s: float, end_s: float, *token_s: float, error: str | None) -> Outcome:
    one = Outcome(0, sent_s, 5, 5, sent_s=sent_s, end_s=end_s, error=error)
    one.token_s.extend(token_s)
    return one


DONE = outcome(0.0, 4.0, 1.0, 1.001, 3.0, error=None)
LOST = outcome(1.0, 2.0, error="timeout")


def test_requests_under_way():
    assert under_way([DONE, LOST]) == ([0.0, 1.0, 2.0, 4.0], [1, 2, 1, 0])


@pytest.mark.parametrize(
    "outcomes", [[DONE, LOST], [DONE], [LOST]], ids=["both", "done", "lost"]
)
@pytest.mark.parametrize("limits_ms", [{}, {"ttft": 500.0, "tpot": 5.0}])
def test_every_run_can_be_drawn(
    tmp_path: pathlib.Path, outcomes: list[Outcome], limits_ms: dict[str, float]
):
    path = tmp_path / "run.svg"
    draw(outcomes, limits_ms, path, title=r"$\stub at <here>$")
    assert r"$\stub at &lt;here&gt;$" in path.read_text()
