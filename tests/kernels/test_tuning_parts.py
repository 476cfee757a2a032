"""What a device's table has beside GEMMs: it steers launch configs, and is checked."""

import json
import pathlib
from typing import Any

import pytest

from fdjax import device
from fdjax.errors import ConfigError
from fdjax.kernels import chip
from fdjax.kernels.decode_attention import config
from fdjax.kernels.decode_attention import table as attention
from fdjax.kernels.layer_program import table as chain
from fdjax.kernels.matmul import gemm, persistent
from fdjax.kernels.matmul.params import PersistentConfig
from fdjax.kernels.shared_prefix import find_groups, room_for
from fdjax.kernels.shared_prefix import table as shared
from fdjax.kernels.tuning import files
from fdjax.kernels.tuning.parts import Part
from tests.kernels.test_shared_prefix import PAGE, tables

H200 = "NVIDIA H200"
CHIP: dict[str, Any] = {"num_sms": 114, "clusters": {"2": 57, "3": 36, "4": 26}}
BLOCKS = {"long_from": 4000, "long_from_if_two_fill": 900, "blocks_two_an_sm": 200}
WORTH = {"of_group": 10, "of_batch": 20, "prompt_bytes": 30}
PARTS: dict[str, Part[Any]] = {
    "chip": chip.PART,
    "decode_attention": attention.PART,
    "layer_program": chain.PART,
    "shared_prefix": shared.PART,
}


def _written(path: pathlib.Path, **parts: object) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(files.to_json({**parts, "shapes": []}))
    return path


def _users(**parts: object) -> None:
    """The user's table of an H200, which was looked for before."""
    _written(files.user_path(H200), **parts)
    for part in PARTS.values():
        part.load.cache_clear()


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize("name", PARTS)
def test_the_packages_table_of_an_h200_has_every_part(name: str):
    document = json.loads((files.SHIPPED / "nvidia-h200.json").read_text())
    assert document[name]["measured_with"]
    loaded = PARTS[name].load(files.SHIPPED / "nvidia-h200.json")
    assert loaded is not None
    assert PARTS[name].find() == loaded


def test_what_holds_by_default_was_measured_of_an_h200():
    shipped = files.SHIPPED / "nvidia-h200.json"
    assert chip.PART.load(shipped) == chip.Chip()
    assert attention.PART.load(shipped) == attention.Blocks()
    assert shared.PART.load(shipped) == shared.Worth()


@pytest.mark.usefixtures("on_h200")
def test_a_device_without_a_table_has_the_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "kind", lambda: "NVIDIA of another kind")
    found = [part.find() for part in PARTS.values()]
    assert found == [
        chip.Chip(),
        attention.Blocks(),
        chain.ChainRows(),
        shared.Worth(),
    ]


@pytest.mark.usefixtures("on_h200")
def test_fewer_sms_have_fewer_blocks():
    room = room_for(8, 8, 4)
    tiles = PersistentConfig(256, band=16, shares_weights=True)
    before = persistent.efficiency(tiles, 1100, 28672, gated=False)
    clocks = gemm.clocks(gemm.CONFIGS[0], 28672, 4096)
    assert config.heuristic(config.Sizes(1, 8, 32768)).slots == 66
    _users(chip=CHIP)
    chosen = config.heuristic(config.Sizes(1, 8, 32768))
    assert (chosen.splits, chosen.slots) == (2, 57)
    assert room_for(8, 8, 4) < room
    assert gemm.clocks(gemm.CONFIGS[0], 28672, 4096) > clocks
    assert persistent.efficiency(tiles, 1100, 28672, gated=False) != before


@pytest.mark.usefixtures("on_h200")
def test_a_table_says_which_rows_are_long():
    sizes = config.Sizes(8, 8, 1000)
    assert config.heuristic(sizes).warps == 8
    _users(decode_attention=BLOCKS)
    assert config.heuristic(sizes).warps == 16
    many = config.heuristic(config.Sizes(25, 8, 1000))
    assert (many.heads, many.slots) == (8, 200)


@pytest.mark.usefixtures("on_h200")
def test_a_table_says_what_is_worth_to_be_read_once():
    drawn = tables(("a", 2, 5), ("a", 2, 40), width=8)
    assert not find_groups(drawn.table, drawn.lengths, page_size=PAGE)
    _users(shared_prefix=WORTH)
    assert find_groups(drawn.table, drawn.lengths, page_size=PAGE)


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("chip", [], "it is no object"),
        ("chip", {**CHIP, "num_sms": 0}, "num_sms is 0; it is a whole number from 1"),
        ("chip", {**CHIP, "clusters": 7}, "clusters is no object"),
        ("chip", {**CHIP, "clusters": {"2": 5}}, "clusters has ['2']; it is of 2, 3"),
        ("chip", {"num_sms": 9}, "chip has no 'clusters'"),
        (
            "chip",
            {**CHIP, "clusters": {**CHIP["clusters"], "2": 58}},
            "2 is 58; it is a whole number from 1 to 57",
        ),
        (
            "decode_attention",
            {**BLOCKS, "long_from_if_two_fill": 4001},
            "long_from_if_two_fill is 4001; it is a whole number from 1 to 4000",
        ),
        ("decode_attention", {"long_from": 7}, "no 'long_from_if_two_fill'"),
        ("shared_prefix", {**WORTH, "of_group": True}, "of_group is True; it is a"),
        ("shared_prefix", {**WORTH, "more": 1}, "'more' is none of measured_with, of_"),
    ],
)
def test_a_wrong_part_is_named(
    tmp_path: pathlib.Path, name: str, part: object, message: str
):
    path = _written(tmp_path / "a.json", **{name: part})
    with pytest.raises(ConfigError, match=f"cannot be read: {name}") as error:
        PARTS[name].load(path)
    assert message in str(error.value)
