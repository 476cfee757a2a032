"""Files of measurements: their format, and which counts."""

import json
import pathlib

import pytest

from fdjax.errors import ConfigError
from fdjax.kernels.tuning import files


@pytest.mark.parametrize("version", [0, 2, "1", True, None])
def test_another_format_is_refused(tmp_path: pathlib.Path, version: object):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"format": version, "shapes": []}))
    with pytest.raises(ConfigError) as raised:
        files.read(path)
    assert f"{path} cannot be read: it is of format {version!r}" in str(raised.value)
    assert "this fdjax reads 1; delete it, or make it anew" in str(raised.value)


def test_a_file_without_a_format_is_of_the_first(tmp_path: pathlib.Path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"shapes": [1]}))
    assert files.read(path) == {"shapes": [1]}
    assert files.read(tmp_path / "none.json") == {"format": 1, "shapes": []}


def test_the_users_file_counts_before_the_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (user, _), (shipped, name) = files.places("NVIDIA H200")
    assert user == tmp_path / "fdjax" / "tuned" / "nvidia-h200.json"
    assert shipped.is_file(), "the package has this one"
    assert name == "the tuned table of NVIDIA H200"
