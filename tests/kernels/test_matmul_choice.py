"""Flat GEMMs: refusals, errors, the choice among implementations, and the tables."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from fdjax.kernels.cases import struct, tagged
from fdjax.kernels.chip import SHARED_BYTES, Chip
from fdjax.kernels.gated_matmul import OP as GATED
from fdjax.kernels.gated_matmul import gated_matmul
from fdjax.kernels.matmul import OP, Matmul, cases, config, gemm, matmul, table
from fdjax.kernels.tuning import files
from fdjax.kernels.weight import Dense
from fdjax.notation import Array

# Those of the GPU's handler, and the rows that each takes.
LIMITS = {"gemv": 4, "flat": 64, "gemm": 128, "persistent": 2**31 - 1}
CI = tagged(cases.CASES, "ci")


# --- Refusals and errors --------------------------------------------------------------


def _refusal(
    name: str,
    *,
    m: int = 1,
    n: int = 64,
    k: int = 64,
    x: Any = jnp.bfloat16,
    weight: Any = jnp.bfloat16,
    bias: Any = jnp.bfloat16,
    out: Any = jnp.bfloat16,
) -> str:
    call = Matmul(
        struct(m, k, dtype=x),
        Dense(struct(n, k, dtype=weight)),
        struct(n, dtype=bias),
        None,
        activation=None,
        out_dtype=out,
    )
    return str(OP.refuse(name, call))


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_refuses_what_the_handler_does_not_take(name: str, limit: int):
    assert _refusal(name, m=limit) == "None"
    narrow = name in ("gemm", "persistent")
    wide = "the result is float32; it writes 16 bits" if narrow else "None"
    assert _refusal(name, out=jnp.float32) == wide
    assert _refusal(name, m=limit + 1) == f"M is {limit + 1}; it takes 1 to {limit}"
    assert _refusal(name, m=0) == f"M is 0; it takes 1 to {limit}"
    assert _refusal(name, n=60) == "[N, K] is [60, 64]; it takes multiples of [8, 8]"
    assert _refusal(name, k=60) == "[N, K] is [64, 60]; it takes multiples of [8, 8]"
    assert "float32; it takes" in _refusal(
        name, x=jnp.float32, weight=jnp.float32, bias=jnp.float32
    )
    assert "bfloat16, float16" in _refusal(name, weight=jnp.float16)
    assert "bfloat16, float32" in _refusal(name, bias=jnp.float32)
    assert "the result is float16" in _refusal(name, out=jnp.float16)


@pytest.mark.usefixtures("on_h200")
def test_a_gated_gemm_needs_whole_tiles_of_both_halves():
    call = cases._case("gated", m=1, n=24, k=64).call
    assert OP.refuse("flat", call) is None
    gated = dataclasses.replace(call, activation="silu")
    reason = str(GATED.refuse("flat", gated))
    assert reason == "[N, K] is [24, 64]; it takes multiples of [16, 8]"


@pytest.mark.cpu
def test_on_a_cpu_the_reference_serves():
    assert OP.explain(CI[0].call).startswith("matmul: reference; not gemv:")


def _zeros(*shape: int) -> Array:
    return jnp.zeros(shape, jnp.bfloat16)


def _weight(n: int, k: int) -> Dense:
    return Dense(_zeros(n, k))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: matmul(_zeros(2, 8), _weight(8, 16)), "8 columns, weight 16"),
        (lambda: matmul(_zeros(2, 8), _weight(16, 8), _zeros(8)), r"\(8,\), weight 16"),
        (
            lambda: matmul(_zeros(2, 8), _weight(16, 8), None, _zeros(1, 16)),
            r"residual has shape \(1, 16\), the result \(2, 16\)",
        ),
        (
            lambda: gated_matmul(_zeros(2, 8), _weight(15, 8), activation="silu"),
            "15 rows, not twice F",
        ),
        (
            lambda: gated_matmul(_zeros(2, 8), _weight(16, 16), activation="silu"),
            "8 columns, weight 16",
        ),
        (
            lambda: gated_matmul(
                _zeros(2, 8), _weight(16, 8), _zeros(8), activation="silu"
            ),
            r"\(8,\), weight 16",
        ),
        (
            lambda: gated_matmul(_zeros(2, 8), _weight(16, 8), activation="mish"),
            "no activation 'mish'",
        ),
    ],
)
def test_wrong_arguments_are_value_errors(function: Callable[[], Array], message: str):
    with pytest.raises(ValueError, match=message):
        function()


# --- The choice -----------------------------------------------------------------------

SHAPES = [(n, k) for _, n, k, _ in cases.LLAMA3_8B] + [
    (8, 8),
    (1032, 4104),
    (12288, 4096),
    (22016, 4096),
    (4096, 11008),
    (50272, 4096),
    (250880, 4096),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("m", [1, 8, 9, 16, 17, 32, 33, 64])
def test_the_heuristic_fits_an_sm(m: int, shape: tuple[int, int]):
    _check_config(config.heuristic(m, *shape), m)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("m", [8, 16, 32, 64])
def test_every_candidate_fits_an_sm(m: int, shape: tuple[int, int]):
    for flat in config.candidates(m, shape[0]):
        _check_config(flat, m)


@pytest.mark.parametrize("n", [3584, 4608, 6144, 8192, 12288, 22016, 24576, 28672])
def test_some_candidate_has_a_block_on_nearly_every_sm(n: int):
    """In one wave: 3,584 rows are 112 blocks of 64 and half of K, or 128 of 56."""
    blocks = {
        -(-n // (flat.tiles * flat.tile_rows)) * flat.splits
        for flat in config.candidates(8, n)
    }
    sms = Chip().num_sms
    assert any(0.86 <= count / (sms * wave) <= 1 for count in blocks for wave in (1, 2))


@pytest.mark.parametrize("n", [4104, 4608, 6144, 8192, 12288, 22016, 27392, 28672])
def test_narrow_blocks_are_as_many_as_leave_no_block_without_rows(n: int):
    """A multiple of the SMs in all, with the wide ones; and no rows are left over."""
    found = [one for one in config.candidates(8, n) if one.narrow]
    assert found
    for flat in found:
        rows = [flat.tiles * (flat.tile_rows - less) for less in (0, 8)]
        wide = -(-max(n - flat.narrow * rows[1], 0) // rows[0])
        blocks = (wide + flat.narrow) * flat.splits
        assert blocks % Chip().num_sms == 0
        assert 0 <= wide * rows[0] + flat.narrow * rows[1] - n < flat.tiles * 8


def _check_config(flat: config.FlatConfig, m: int) -> None:
    assert flat.problem(m) is None
    assert flat.stages >= 2


@pytest.mark.parametrize("m", [1, 16, 64])
def test_a_gated_gemm_gets_tiles_of_both_halves(m: int):
    flat = config.flat_config(m, 2048, 4096, gated=True)
    assert flat.tiles == 2
    _check_config(flat, m)


@pytest.mark.usefixtures("on_h200")
def test_as_m_rises_gemv_then_flat_then_xlas_dot_serve():
    def chosen(m: int) -> str:
        return OP.explain(cases._case("square", m=m, n=4096, k=4096).call)

    source = " (the tuned table of NVIDIA H200)"
    assert chosen(1) == f"matmul: gemv{source}"
    assert chosen(8) == f"matmul: flat{source}"
    assert chosen(65) == f"matmul: reference{source}"
    logits = cases._case("head", m=65, n=4096, k=4096, float32=True).call
    assert OP.explain(logits) == f"matmul: library{source}"


@pytest.mark.usefixtures("on_h200")
def test_without_a_row_the_heuristic_says_so():
    call = cases._case("unknown", m=8, n=80, k=64).call
    told = "flat (a heuristic: no table of NVIDIA H200 has [80, 64])"
    assert OP.explain(call) == f"matmul: {told}"
    gated = dataclasses.replace(call, activation="silu")
    assert GATED.explain(gated) == f"gated_matmul: {told}"


@pytest.mark.usefixtures("on_h200")
def test_a_forced_implementation_is_nobodys_choice():
    with OP.using("flat"):
        assert OP.explain(cases._case("any", m=1, n=80, k=64).call) == "matmul: flat"


@pytest.mark.parametrize("path", sorted(files.SHIPPED.glob("*.json")), ids=str)
def test_the_tables_are_valid(path: Any):
    choices = table.load(path)
    assert choices
    for choice in choices.values():
        for m, flat in choice.flat.items():
            _check_config(flat, m)


@pytest.mark.usefixtures("on_h200")
def test_the_choice_follows_the_table(monkeypatch: pytest.MonkeyPatch):
    flat = config.FlatConfig(1, 2, 48, 1, 7)
    choice = table.Choice(2, 16, {8: flat})
    monkeypatch.setattr(table, "find", lambda n, k, dtype: (choice, "a table"))
    assert config.choose(2, 64, 64) == ("gemv", "flat")
    assert config.choose(3, 64, 64) == ("flat", "gemv")
    assert config.choose(16, 64, 64) == ("flat", "gemv")
    assert config.choose(17, 64, 64) == ("reference",)
    assert config.flat_config(5, 64, 64, gated=False) == flat
    assert config.flat_config(9, 64, 64, gated=False) == config.heuristic(9, 64, 64)


# --- Large GEMMs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "rows", "split"),
    [
        (6144, 4096, 96, 2),
        (4096, 4096, 144, 4),
        (28672, 4096, 256, 1),
        (4096, 14336, 144, 4),
    ],
)
def test_llama3_8bs_large_gemms_are_one_wave(n: int, k: int, rows: int, split: int):
    assert gemm.choose(n, k) == gemm.GemmConfig(rows, split)
    assert 100 <= -(-n // rows) * split <= Chip().num_sms


@pytest.mark.parametrize("way", gemm.CONFIGS, ids=str)
def test_large_gemms_fit_an_sm(way: gemm.GemmConfig):
    sums = gemm.MAX_GEMM_M * (way.rows + 8) * 4
    assert way.stages >= 2
    assert max(way.stages * way.stage_bytes, sums) + 1024 <= SHARED_BYTES
