"""Who multiplies how many rows in a chain: from a device's table, or by default."""

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from fdjax import device
from fdjax.cli.doctor import caches
from fdjax.errors import ConfigError
from fdjax.kernels.layer_program import config, table
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.matmul import persistent
from fdjax.kernels.matmul.params import (
    FlatConfig,
    GemmConfig,
    GemvConfig,
    LibraryConfig,
    MatmulConfig,
    PersistentConfig,
)
from fdjax.kernels.tuning import files

PART: dict[str, Any] = {
    "gemv_up_to": 2,
    "flat_up_to": 32,
    "gemm_up_to": 96,
    "library": [{"m": 97, "n": 6144, "k": 4096, "candidate": 3}],
}


def _write(path: pathlib.Path, part: object) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"layer_program": part, "shapes": []}))
    return path


@pytest.mark.usefixtures("on_h200")
def test_the_packages_table_has_what_was_measured_of_an_h200():
    found = table.PART.find()
    assert replace(found, candidates={}) == ChainRows(1, 64, 128)
    assert found.candidates[576, 28672, 4096] == 3
    assert config.choose(256, 28672, 4096, gate="silu") == LibraryConfig(1)
    assert config.choose(512, 28672, 4096, gate="silu") == LibraryConfig(0)


@pytest.mark.usefixtures("on_h200")
def test_a_gate_is_inside_its_gemm_where_tiles_fill_the_sms():
    kernels = {m: config.choose(m, 28672, 4096, gate="silu") for m in (960, 1024, 8192)}
    assert kernels[960] == LibraryConfig(0)
    assert kernels[1024] == PersistentConfig(256, band=8, shares_weights=True)
    assert kernels[8192] == PersistentConfig(256, band=16, shares_weights=True)
    assert config.choose(8192, 4096, 14336) == LibraryConfig(0)  # no gate
    # Seven waves of 132 tiles; the last row of tiles has 65 tokens of 128.
    tiles = PersistentConfig(256, band=8, shares_weights=True)
    few = persistent.efficiency(tiles, 961, 28672, gated=True)
    assert few == pytest.approx(961 * 14336 / (7 * 132 * 128 * 128))


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize(
    ("gate", "bias"), [("silu", True), ("gelu_tanh", True), ("gelu", False)]
)
def test_a_gate_is_judged_by_the_tile_that_it_has(gate: str, bias: bool):
    def chosen(m: int) -> MatmulConfig:
        return config.choose(m, 28672, 4096, gate=gate, bias=bias)

    tiles = PersistentConfig(128, band=16, shares_weights=True)
    assert chosen(8192) == tiles
    # It fills the SMs as the other does, and is read from shared memory more often.
    assert chosen(1024) == LibraryConfig(0)
    assert (
        persistent.efficiency(tiles, 1024, 28672, gated=True)
        < ChainRows().persistent_from / 1000
    )


@pytest.mark.usefixtures("on_h200")
def test_a_device_without_a_table_takes_what_the_kernels_can(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(device, "kind", lambda: "NVIDIA of another kind")
    assert table.PART.find() == ChainRows(1, 64, 128, {})
    assert config.choose(256, 28672, 4096, gate="silu") == LibraryConfig(0)


@pytest.mark.usefixtures("on_h200")
def test_a_table_steers_the_program():
    _write(files.user_path("NVIDIA H200"), PART)
    kernels = {m: config.choose(m, 6144, 4096) for m in (2, 3, 32, 33, 96, 97, 98)}
    assert kernels[2] == GemvConfig()
    assert all(isinstance(kernels[m], FlatConfig) for m in (3, 32))
    assert all(isinstance(kernels[m], GemmConfig) for m in (33, 96))
    assert (kernels[97], kernels[98]) == (LibraryConfig(3), LibraryConfig(0))
    shapes = ((6144, 4096),)
    assert config.source(2, shapes) == "GEMMs by gemv, for up to 2 rows"
    assert config.source(33, shapes) == "GEMMs by gemm, for more than 32 rows"
    assert config.source(97, shapes) == (
        "GEMMs by cuBLASLt, for more than 96 rows, or by persistent, where they have a "
        "gate and their tiles fill the SMs"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ([], "layer_program: it is no object"),
        ({**PART, "gemv_up_to": 5}, "gemv_up_to is 5; it is a whole number from 0 to"),
        ({**PART, "flat_up_to": 1}, "flat_up_to is 1; it is a whole number from 2 to"),
        (
            {**PART, "gemm_up_to": 129},
            "gemm_up_to is 129; it is a whole number from 32",
        ),
        (
            {**PART, "more": 1},
            "'more' is none of beside_bytes, beside_rows, flat_up_to",
        ),
        ({**PART, "library": [{"m": 1, "n": 1, "k": 1}]}, "has no 'candidate'"),
        ({**PART, "library": [7]}, "layer_program: "),
        ({**PART, "persistent_from": 1002}, "persistent_from is 1002; it is a whole"),
        ({**PART, "beside_bytes": 0.5}, "beside_bytes is 0.5; it is a whole number"),
        ({"gemv_up_to": 1}, "layer_program has no 'flat_up_to'"),
    ],
)
def test_a_wrong_part_is_named(tmp_path: pathlib.Path, part: object, message: str):
    path = _write(tmp_path / "a.json", part)
    with pytest.raises(ConfigError, match="cannot be read: layer_program") as error:
        table.PART.load(path)
    assert message in str(error.value)


@pytest.mark.usefixtures("on_h200")
def test_the_doctor_names_a_wrong_part():
    path = _write(files.user_path("NVIDIA H200"), {**PART, "gemv_up_to": 5})
    kept = caches._table("NVIDIA H200")
    assert kept.problem is not None
    assert f"{path} cannot be read: layer_program: gemv_up_to is 5" in kept.problem
