"""`persistent`: the launch config, of the tiles that a GEMM's end leaves it."""

import dataclasses
from typing import Any

import pytest

from fdjax.kernels.matmul import cases, persistent

SMALL = ("silu", "gelu_tanh")


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize(
    ("activation", "bias", "rows"),
    [
        *((None, bias, 256) for bias in (False, True)),
        *(
            (name, bias, 128 if bias else 256)
            for name in SMALL
            for bias in (False, True)
        ),
        *((name, bias, 128) for name in ("gelu", "relu") for bias in (False, True)),
    ],
)
def test_the_handler_is_told_a_tile_that_the_gate_has(
    activation: str | None, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
):
    told: list[Any] = []
    monkeypatch.setattr(persistent.handler, "run", lambda _, way: told.append(way))
    n = 28672 if activation else 16384  # tiles of either size fill the SMs alike
    call = cases._case("prompts", m=8192, n=n, k=4096, bias=bias).call
    persistent.run(dataclasses.replace(call, activation=activation))
    (way,) = told
    assert way.rows == rows
    offered = persistent.configs(8192, activation=activation, bias=bias)
    assert max(each.rows for each in offered) == rows
