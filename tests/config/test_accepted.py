"""Fields are accepted by a list: what it does not name is refused by its own name."""

from dataclasses import dataclass, replace

import pytest

from fdjax.config import Attention, LinearScaling, Rope
from fdjax.config.accepted import Accepted, refused_field

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
    assert refused_field(part, ACCEPTED) is None


def test_a_new_field_is_refused_by_name_until_it_is_named():
    assert refused_field(sinking(4), ACCEPTED) == "sinks = 4"
    assert refused_field(sinking(None), ACCEPTED) is None
    wider = {**ACCEPTED, Attention: {**ACCEPTED[Attention], "sinks": int | None}}
    assert refused_field(sinking(4), wider) is None


def test_zero_is_not_nothing():
    assert refused_field(sinking(0), ACCEPTED) == "sinks = 0"


def test_a_field_of_another_kind_is_refused():
    part = replace(PART, positions=None)
    assert refused_field(part, ACCEPTED) == "positions = None"


def test_a_part_inside_is_told_with_its_path():
    rope = Rope(1e4, 8, scaling=LinearScaling(2.0))
    part = replace(PART, positions=rope)
    expected = "attention.positions.scaling = LinearScaling(factor=2.0)"
    assert refused_field(part, ACCEPTED, "attention.") == expected
