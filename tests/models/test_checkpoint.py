import json
import pathlib
import shutil

import numpy as np
import pytest

from fdjax.errors import CheckpointError, ConfigError
from fdjax.models.checkpoint import open_checkpoint, read_config
from tests.support.safetensors_writer import write_file, write_index, write_shards

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
A, B, C = (np.full((2, i), i, np.float32) for i in (1, 2, 3))
SHARDS = {FIRST: {"a": A, "b": B}, SECOND: {"c": C}}


def test_single_file(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / "model.safetensors", {"a": A, "b": B})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == ()
    assert {n: t.shape for n, t in checkpoint.tensors.items()} == {
        "a": (2, 1),
        "b": (2, 2),
    }


def test_shards(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path, SHARDS)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == ()
    files = {name: tensor.path.name for name, tensor in checkpoint.tensors.items()}
    assert files == {"a": FIRST, "b": FIRST, "c": SECOND}


def test_links_out_of_the_folder_are_followed(tmp_path: pathlib.Path) -> None:
    # The hub's cache keeps its files elsewhere and links to them.
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    folder.mkdir()
    blobs.mkdir()
    write_shards(blobs, SHARDS)
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(f"../blobs/{path.name}")
    assert open_checkpoint(folder).tensors.keys() == {"a", "b", "c"}


def test_an_unreadable_single_file_is_the_only_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com")
    with pytest.raises(CheckpointError, match="git-lfs pointer") as error:
        open_checkpoint(tmp_path)
    assert len(error.value.problems) == 1
    assert str(tmp_path) in str(error.value)


_INDEXES = {
    "not json": ("{", "cannot be read: Expecting"),
    "no object": ("[]", "a JSON list, not an object"),
    "no map": ("{}", "it has no weight_map"),
    "empty map": ('{"weight_map": {}}', "it has no weight_map"),
    "map of lists": ('{"weight_map": {"a": ["x"]}}', "as the file of 'a'"),
    "twice": ('{"weight_map": {"a": "x", "a": "y"}}', "the key 'a' twice"),
}


@pytest.mark.parametrize("case", _INDEXES.values(), ids=_INDEXES)
def test_refuses_an_index_that_is_not_one(
    tmp_path: pathlib.Path, case: tuple[str, str]
) -> None:
    text, message = case
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "spelling", ["../{}", "{absolute}", "sub/{}", "..\\{}", "C:{}"]
)
def test_refuses_files_outside_the_folder(
    tmp_path: pathlib.Path, spelling: str
) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path, folder / "sub"):
        write_file(place / "x.safetensors", {"a": A})
    outside = str(tmp_path / "x.safetensors")
    write_index(folder, {"a": spelling.format("x.safetensors", absolute=outside)})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors == {}
    (problem,) = checkpoint.problems
    assert "not the name of a file in the folder itself" in problem


def test_refuses_pickles_in_the_index(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    write_index(tmp_path, {"a": "pytorch_model.bin"})
    assert open_checkpoint(tmp_path).problems == (
        "model.safetensors.index.json names 'pytorch_model.bin', which is not a "
        ".safetensors file",
    )


def test_reports_a_missing_shard_once(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path, SHARDS)
    (tmp_path / FIRST).unlink()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == (
        f"model.safetensors.index.json names {FIRST!r}, which is not in the folder",
    )
    assert checkpoint.promised == {"a", "b", "c"}


def test_reports_an_unreadable_shard_once(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path, SHARDS)
    (tmp_path / FIRST).write_bytes(b"")
    (problem,) = open_checkpoint(tmp_path).problems
    assert problem.startswith(f"{FIRST} cannot be read")


def test_reports_tensors_that_are_elsewhere_or_nowhere(tmp_path: pathlib.Path) -> None:
    homes = write_shards(tmp_path, SHARDS)
    write_index(tmp_path, {**homes, "a": SECOND, "d": SECOND})
    assert open_checkpoint(tmp_path).problems == (
        f"model.safetensors.index.json puts tensor 'a' in {SECOND}, which lacks it; "
        f"it is in {FIRST}",
        f"model.safetensors.index.json puts tensor 'd' in {SECOND}, which lacks it",
    )


def test_reports_a_tensor_in_two_shards(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path, {FIRST: {"a": A, "b": B}, SECOND: {"a": A, "c": C}})
    assert open_checkpoint(tmp_path).problems == (
        f"tensor 'a' is in both {FIRST} and {SECOND}",
    )


def test_collects_the_problems_of_all_shards(tmp_path: pathlib.Path) -> None:
    write_shards(tmp_path, SHARDS)
    for name in (FIRST, SECOND):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-4])
    problems = open_checkpoint(tmp_path).problems
    assert ["'b'" in problems[0], "'c'" in problems[1], len(problems)] == [
        True,
        True,
        2,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "x.pt",
        "x.pth",
        "x.ckpt",
    ],
)
def test_pickles_are_refused_and_never_opened(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02.")
    opened: list[pathlib.Path] = []
    monkeypatch.setattr(pathlib.Path, "open", lambda path, *_: opened.append(path))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path)
    assert name in str(error.value)
    assert "save_pretrained(TARGET, safe_serialization=True)" in str(error.value)
    assert opened == []


def test_safetensors_beside_pickles_are_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    write_file(tmp_path / "model.safetensors", {"a": A})
    assert open_checkpoint(tmp_path).tensors.keys() == {"a"}


def test_shards_without_an_index_are_named(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / FIRST, {"a": A})
    with pytest.raises(CheckpointError, match=f"only {FIRST}; fetch the missing file"):
        open_checkpoint(tmp_path)


def test_an_empty_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no model\.safetensors and no model\.safet"
    ):
        open_checkpoint(tmp_path)


def test_config_with_overrides(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1, "b": 2}))
    assert read_config(tmp_path) == {"a": 1, "b": 2}
    assert read_config(tmp_path, {"b": 3, "c": 4}) == {"a": 1, "b": 3, "c": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no config.json; a model folder holds config.json"),
        ("{", "cannot be read: Expecting"),
        ("[]", "a JSON list, not an object"),
        ('"x"', "a JSON str, not an object"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
    ],
)
def test_a_config_that_is_not_one(
    tmp_path: pathlib.Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_config(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_giant_config_is_not_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(200_000_000)  # sparse
    with pytest.raises(ConfigError, match="200000000 bytes; at most 100000000"):
        read_config(tmp_path)
    shutil.rmtree(tmp_path)
