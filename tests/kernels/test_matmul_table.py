"""Tables of inflection points: round trip, precedence, and errors."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import pytest

from fdjax.errors import ConfigError
from fdjax.kernels.matmul import OP, cases, config, table
from fdjax.kernels.tuning import files
from fdjax.user_folders import NoHomeError

KIND = "NVIDIA H200"
FLAT = {"tiles": 2, "boxes": 1, "tile_rows": 56, "splits": 1, "stages": 5}
ROW: dict[str, Any] = {
    "n": 6144,
    "k": 4096,
    "gemv_up_to": 4,
    "flat_up_to": 8,
    "flat": {"8": FLAT},
}


def _write(path: pathlib.Path, *rows: Any, **others: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(files.to_json({**others, "shapes": list(rows)}))
    return path


def _explain(m: int, n: int = 6144) -> str:
    return OP.explain(cases._case("any", m=m, n=n, k=4096).call)


@pytest.mark.usefixtures("on_h200")
def test_the_users_row_comes_before_the_packages():
    shipped = " (the tuned table of NVIDIA H200)"
    assert _explain(1) == f"matmul: flat{shipped}"
    path = _write(files.user_path(KIND), ROW)
    table.load.cache_clear()
    users = f" (the user's table {path})"
    assert _explain(4) == f"matmul: gemv{users}"
    assert _explain(8) == f"matmul: flat{users}"
    assert _explain(9) == f"matmul: reference{users}"
    assert config.flat_config(8, 6144, 4096, gated=False) == config.FlatConfig(**FLAT)
    assert _explain(8, n=4096) == f"matmul: flat{shipped}", "other shapes stay"


def test_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert files.user_path(KIND) == tmp_path / "fdjax" / "tuned" / "nvidia-h200.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / ".config" / "fdjax" / "tuned"
    assert files.user_path(KIND) == folder / "nvidia-h200.json"


@pytest.mark.usefixtures("on_h200")
def test_a_user_without_a_home_has_no_table(monkeypatch: pytest.MonkeyPatch):
    def missing(*_: str) -> pathlib.Path:
        raise NoHomeError

    monkeypatch.setattr(files, "user_folder", missing)
    choice, place = table.find(6144, 4096, "bfloat16")
    assert choice is not None
    assert place == "the tuned table of NVIDIA H200"


def test_the_packages_tables_are_written_as_fdjax_writes_them():
    for path in files.SHIPPED.glob("*.json"):
        assert files.to_json(files.read(path)) == path.read_text()


def test_new_rows_replace_those_of_their_shape_and_follow_the_others(
    tmp_path: pathlib.Path,
):
    other = {**ROW, "n": 8}
    path = _write(tmp_path / "a.json", ROW, other, device=KIND, note="kept")
    new = [{**ROW, "n": 16}, {**ROW, "gemv_up_to": 0}]
    document = table.updated(path, KIND, new)
    assert document == {
        "format": files.FORMAT,
        "device": KIND,
        "note": "kept",
        "shapes": [new[1], other, new[0]],
    }
    assert table.updated(tmp_path / "none.json", KIND, new)["shapes"] == new


def test_rows_are_of_a_format(tmp_path: pathlib.Path):
    half = {**ROW, "dtype": "float16", "gemv_up_to": 1}
    path = _write(tmp_path / "a.json", ROW)
    document = table.updated(path, KIND, [half])
    assert document["shapes"] == [ROW, half]
    path.write_text(files.to_json(document))
    table.load.cache_clear()
    rows = table.load(path)
    chosen = {format_: row.gemv_up_to for (_, _, format_), row in rows.items()}
    assert chosen == {"bfloat16": 4, "float16": 1}


def test_a_row_that_says_no_format_has_its_files(tmp_path: pathlib.Path):
    path = _write(tmp_path / "a.json", ROW, dtype="float16")
    assert [*table.load(path)] == [(6144, 4096, "float16")]


@pytest.mark.usefixtures("on_h200")
def test_other_formats_have_no_row():
    choice, place = table.find(6144, 4096, jnp.int8)
    assert choice is None
    assert place == "a heuristic: no table of NVIDIA H200 has [6144, 4096] of int8"


@pytest.mark.usefixtures("on_h200")
def test_a_row_of_another_format_serves_where_there_is_none():
    half = cases._case("any", m=1, n=6144, k=4096, dtype=jnp.float16).call
    told = "matmul: flat (the tuned table of NVIDIA H200, of bfloat16)"
    assert OP.explain(half) == told
    users = {**ROW, "dtype": "float16", "flat_up_to": 64}
    path = _write(files.user_path(KIND), users)
    table.load.cache_clear()
    assert OP.explain(half) == f"matmul: gemv (the user's table {path})"
    assert _explain(1) == "matmul: flat (the tuned table of NVIDIA H200)"
    assert config.choose(9, 6144, 4096, dtype=jnp.float16)[0] == "flat"
    assert config.flat_config(
        8, 6144, 4096, gated=False, dtype=jnp.float16
    ) == config.FlatConfig(**FLAT)


def test_the_table_of_another_device_is_refused(tmp_path: pathlib.Path):
    path = _write(tmp_path / "a.json", device="NVIDIA A100")
    with pytest.raises(ConfigError, match=r"is of NVIDIA A100, and this device is NV"):
        table.updated(path, KIND, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "shapes[0]: n is 0; it is a whole number from 1"),
        ({"k": "4096"}, "shapes[0]: k is '4096'"),
        ({"dtype": "int8"}, "shapes[0]: dtype is 'int8'; it is one of bfloat16, fl"),
        ({"gemv_up_to": 5}, "gemv_up_to is 5; it is a whole number from 0 to 4"),
        ({"flat_up_to": 3}, "flat_up_to is 3; it is a whole number from 4 to 64"),
        ({"flat_up_to": 65}, "flat_up_to is 65"),
        ({"flat_up_to": True}, "flat_up_to is True"),
        ({"flat": []}, "flat is no object"),
        ({"flat": {"7": FLAT}}, "flat has M = '7'; it pads to (8, 16, 32, 64)"),
        ({"flat": {"8": {**FLAT, "tiles": 3}}}, "flat[8]: tiles is 3; it takes 1 to 2"),
        ({"flat": {"8": {**FLAT, "tile_rows": 50}}}, "8 to 64 in steps of 8"),
        ({"flat": {"8": {**FLAT, "stages": 16}}}, "stages is 16, which takes 247808"),
        ({"flat": {"8": {**FLAT, "narrow": -1}}}, "narrow is -1; it is a whole number"),
        ({"flat": {"8": {**FLAT, "narrow": True}}}, "narrow is True"),
        (
            {"flat": {"8": {**FLAT, "tile_rows": 8, "narrow": 1}}},
            "tile_rows is 8, which leaves a narrow tile none",
        ),
        (
            {"flat": {"8": {**FLAT, "narrow": 385}}},
            "flat[8]: narrow is 385; of 6144 rows it takes up to 384",
        ),
        ({"flat": {"8": {**FLAT, "more": 1}}}, "'more'"),
        ({"flat": {"8": {"tiles": 1}}}, "missing 4 required"),
        ({"flat": {"8": 5}}, "flat[8]: "),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: pathlib.Path, change: dict[str, Any], message: str
):
    path = _write(tmp_path / "a.json", {**ROW, **change})
    with pytest.raises(ConfigError) as raised:
        table.load(path)
    text = str(raised.value)
    assert text.startswith(f"the table {path} cannot be read: shapes[0]: ")
    assert message in text
    assert text.endswith("delete it, or make it anew with `fdjax tune`")


@pytest.mark.parametrize("name", ["n", "k", "gemv_up_to", "flat_up_to", "flat"])
def test_a_missing_field_is_named(tmp_path: pathlib.Path, name: str):
    row = {key: value for key, value in ROW.items() if key != name}
    with pytest.raises(ConfigError, match=rf"shapes\[0\] has no '{name}'"):
        table.load(_write(tmp_path / "a.json", row))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", "it holds no JSON object"),
        ("{}", "it has no list 'shapes'"),
        (json.dumps({"shapes": [7]}), r"shapes\[0\]: "),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: pathlib.Path, text: str, message: str):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        table.load(path)
