"""Pipes, devices and files without end are refused, and never opened."""

import os
import pathlib

import pytest

from fdjax import ConfigError
from fdjax.models import source
from fdjax.models.checkpoint import read_config
from fdjax.models.regular_files import MAX_BYTES, read_whole

NAMES = ["config.json", "tokenizer.json", "chat_template.jinja", "vocab.txt"]


@pytest.fixture(params=["pipe", "device", "huge"])
def hostile(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """Such a file, outside of folders of models; who opened the pipe would hang."""
    path = tmp_path / request.param
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "device":
            return pathlib.Path("/dev/zero")
        case _:
            with path.open("wb") as file:
                file.truncate(MAX_BYTES + 1)
    return path


def test_they_are_not_read(hostile: pathlib.Path):
    with pytest.raises(ValueError, match=r"not a regular file|100000001 bytes"):
        read_whole(hostile)


def test_what_is_regular_is_read(tmp_path: pathlib.Path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_whole(tmp_path / "link") == b"abc"


@pytest.mark.parametrize("name", NAMES)
def test_a_model_folder_with_one_is_refused(
    hostile: pathlib.Path, tmp_path: pathlib.Path, name: str
):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).symlink_to(hostile)
    with pytest.raises(ConfigError, match=rf"{name} cannot be read: .*remove it"):
        source.resolve(folder)


def test_a_configuration_alone(hostile: pathlib.Path, tmp_path: pathlib.Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").symlink_to(hostile)
    with pytest.raises(ConfigError, match=r"cannot be read: it"):
        read_config(folder)


def test_weights_may_have_any_size_and_be_elsewhere(tmp_path: pathlib.Path):
    folder = tmp_path / "model"
    folder.mkdir()
    with (tmp_path / "blob").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    (folder / "lost.json").symlink_to(tmp_path / "nowhere")
    (folder / "subfolder.json").mkdir()
    os.mkfifo(folder / "of-no-interest.py")
    assert source.resolve(folder) == folder
    os.mkfifo(folder / "other.safetensors")
    with pytest.raises(ConfigError, match=r"other.safetensors cannot be read"):
        source.resolve(folder)
