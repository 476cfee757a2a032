"""`benchmarks/decode.py`: how it cuts prompts into calls."""

import pytest

from benchmarks import decode
from benchmarks.cases import Case


@pytest.mark.parametrize(
    ("batch", "context", "calls"),
    [
        (8, 100, [(5, 100), (3, 100)]),
        (10, 100, [(5, 100), (5, 100)]),
        (1, 1200, [(1, 500), (1, 500), (1, 200)]),
        (2, 500, [(1, 500), (1, 500)]),
    ],
)
def test_every_token_of_every_row_is_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    context: int,
    calls: list[tuple[int, int]],
):
    monkeypatch.setattr(decode, "kind_of_platform", lambda: "cpu")
    monkeypatch.setitem(decode.MAX_BATCHED_TOKENS, "cpu", 500)
    made = [*decode.prefill_calls(Case(batch, context, 1))]
    assert [(part.stop - part.start, stop - start) for part, start, stop in made] == [
        *calls
    ]
    seen = [
        (row, token)
        for part, start, stop in made
        for row in range(part.start, part.stop)
        for token in range(start, stop)
    ]
    assert sorted(seen) == [(r, t) for r in range(batch) for t in range(context)]
