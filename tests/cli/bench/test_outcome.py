"""One request's measures."""

import pytest

from fdjax.cli.bench.outcome import Outcome


def outcome(*token_s: float, made: int | None) -> Outcome:
    return Outcome(
        index=3,
        due_s=1.0,
        input_tokens=5,
        asked_tokens=8,
        sent_s=1.5,
        token_s=list(token_s),
        end_s=5.0,
        output_tokens=made,
    )


def measures(one: Outcome) -> list[float | None]:
    return [one.measure(name) for name in ("ttft", "itl", "tpot", "e2e")]


def test_measures_count_from_the_sending():
    one = outcome(2.0, 2.5, 4.0, made=5)
    assert one.late_s == 0.5
    assert one.gaps_s == [0.5, 1.5]
    assert measures(one) == [0.5, 1.0, 0.5, 3.5]


@pytest.mark.parametrize("made", [1, 4])
def test_tokens_of_one_event_have_no_times_between(made: int):
    assert measures(outcome(2.0, made=made)) == [0.5, None, None, 3.5]


def test_uncounted_tokens_have_no_time_each():
    assert measures(outcome(2.0, 3.0, made=None)) == [0.5, 1.0, None, 3.5]


def test_what_never_came_has_no_first_token():
    assert measures(outcome(made=None)) == [None, None, None, 3.5]


def test_json_has_no_list_of_events():
    fields = outcome(2.0, 3.0, made=3).to_json()
    assert "token_s" not in fields
    assert (fields["events"], fields["tpot_s"], fields["sent_s"]) == (2, 0.5, 1.5)
