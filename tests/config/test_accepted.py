"""Fields are accepted by a list: what it does not name is refused by its own name."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fdjax.config import Alibi, Attention, LinearScaling, Rope
from fdjax.config.accepted import (
    COUNT,
    FINITE,
    ORDINAL,
    POSITIVE,
    Accepted,
    Each,
    Wanted,
    one_of,
    refusal,
)

ACCEPTED: Accepted = {
    Attention: {
        "num_heads": int,
        "num_kv_heads": int,
        "head_dim": int,
        "scale": float,
        "positions": Rope,
        "soft_cap": float | None,
    },
    Rope: {"theta": float, "rotary_dim": int},
}
PART = Attention(4, 2, 8, scale=1.0, positions=Rope(1e4, 8))


@dataclass(frozen=True)
class Sinking(Attention):
    """Attention as it may be one day."""

    sinks: int | None = None


def sinking(sinks: int | None) -> Attention:
    return Sinking(4, 2, 8, scale=1.0, positions=Rope(1e4, 8), sinks=sinks)


@pytest.mark.parametrize(
    "part", [PART, replace(PART, soft_cap=30.0), replace(PART, qkv_bias=False)]
)
def test_what_is_named_or_absent_passes(part: Attention):
    assert refusal(part, ACCEPTED) is None


def test_a_new_field_is_refused_by_name_until_it_is_named():
    problem = refusal(sinking(4), ACCEPTED)
    assert problem is not None and problem.startswith("nobody consumes sinks = 4; give")
    assert refusal(sinking(None), ACCEPTED) is None
    wider = {**ACCEPTED, Attention: {**ACCEPTED[Attention], "sinks": int | None}}
    assert refusal(sinking(4), wider) is None


def test_zero_is_not_nothing():
    assert "sinks = 0" in (refusal(sinking(0), ACCEPTED) or "")


@pytest.mark.parametrize(
    ("positions", "told"),
    [
        (None, "positions = None is of the class None; expected Rope"),
        (Alibi(), "positions is of the class Alibi; expected Rope"),
    ],
)
def test_a_part_of_another_kind_is_refused_with_the_kinds_that_are_known(
    positions: Any, told: str
):
    assert refusal(replace(PART, positions=positions), ACCEPTED) == told


def test_a_part_inside_is_told_with_its_path():
    rope = Rope(1e4, 8, scaling=LinearScaling(2.0))
    problem = refusal(replace(PART, positions=rope), ACCEPTED, "attention.") or ""
    path = "attention.positions.scaling = LinearScaling(factor=2.0)"
    assert problem.startswith(f"nobody consumes {path};")


@dataclass(frozen=True)
class Inner:
    """A part of something with one field."""

    field: Any


@dataclass(frozen=True)
class Outer:
    """Something with one field, which may hold parts."""

    x: Any


WRONG: tuple[tuple[Any, Wanted, str], ...] = (
    (0, COUNT, " = 0; expected an int from 1"),
    (-1, COUNT.or_none, " = -1; expected an int from 1, or None"),
    (True, COUNT, " = True is of the class bool; expected an int from 1"),
    (1.0, COUNT, " = 1.0 is of the class float; expected an int from 1"),
    (None, COUNT, " = None is of the class None; expected an int from 1"),
    (-1, ORDINAL, " = -1; expected an int from 0"),
    (0.0, POSITIVE, " = 0.0; expected a positive, finite float"),
    (float("inf"), POSITIVE, " = inf; expected a positive, finite float"),
    (float("nan"), POSITIVE, " = nan; expected a positive, finite float"),
    (50, POSITIVE, " = 50 is of the class int; expected a positive, finite float"),
    (float("nan"), FINITE, " = nan; expected a finite float"),
    ("c", one_of("a", "b"), " = 'c'; expected a or b"),
    (1, bool, " = 1 is of the class int; expected bool"),
    ("1", int | float, " = '1' is of the class str; expected int or float"),
    ([1], Each(COUNT), " = [1] is of the class list; expected a tuple"),
    ((1, 0), Each(COUNT), ".1 = 0; expected an int from 1"),
    ((Inner(1), Alibi()), Each(Inner), ".1 is of the class Alibi; expected Inner"),
    ((Inner(1), Inner(0)), Each(Inner), ".1.field = 0; expected an int from 1"),
)


@pytest.mark.parametrize(("value", "wanted", "told"), WRONG, ids=str)
def test_other_values_are_told_with_what_is_expected(
    value: Any, wanted: Wanted, told: str
):
    accepted: Accepted = {Inner: {"field": COUNT}, Outer: {"x": wanted}}
    assert refusal(Outer(value), accepted) == f"x{told}"


RIGHT: tuple[tuple[Any, Wanted], ...] = (
    (1, COUNT),
    (None, COUNT.or_none),
    (0, ORDINAL),
    (1e-30, POSITIVE),
    (0.0, FINITE),
    ("b", one_of("a", "b")),
    (False, bool),
    (1, int | float),
    ((), Each(COUNT)),
    ((1, 2), Each(COUNT)),
)


@pytest.mark.parametrize(("value", "wanted"), RIGHT, ids=str)
def test_these_values_pass(value: Any, wanted: Wanted):
    assert refusal(Outer(value), {Outer: {"x": wanted}}) is None
