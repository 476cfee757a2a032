import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects

from fdjax.errors import ConfigError
from fdjax.models import source


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, Any]:
    """Records what the hub is asked for; it answers with `tmp_path`."""
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **kwargs: Any) -> str:
        asked.update(repo_id=repo_id, **kwargs)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The hub raises the first of these."""
    raised: list[Exception] = []

    def snapshot_download(*_: Any, **__: Any) -> str:
        raise raised[0]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return raised


def test_a_folder_is_itself(tmp_path: pathlib.Path) -> None:
    assert source.resolve(tmp_path) == tmp_path
    assert source.resolve(str(tmp_path)) == tmp_path


def test_a_local_folder_wins_over_the_hub(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, download: dict[str, Any]
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert source.resolve("org/name") == pathlib.Path("org/name")
    assert not download


def test_home_is_expanded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert source.resolve("~/model") == tmp_path / "model"


def test_the_shipped_model_is_in_the_package(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = source.resolve(source.SHIPPED)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


@pytest.mark.parametrize(
    "model",
    [
        "./x",
        "../x",
        "/x/y",
        "~/no-such-folder",
        "x",
        "a/b/c",
        "a\\b",
        "",
        "a/..",
        "-a/b",
    ],
)
def test_what_is_neither_folder_nor_hub_id(
    model: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    download: dict[str, Any],
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="no folder"):
        source.resolve(model)
    assert not download


def test_a_path_object_never_reaches_the_hub(download: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no folder 'org/name'"):
        source.resolve(pathlib.Path("org/name"))
    assert not download


def test_a_file_is_not_a_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        source.resolve(path)


def test_the_hub_is_asked_for_a_revision(
    tmp_path: pathlib.Path, download: dict[str, Any]
) -> None:
    assert source.resolve("Qwen/Qwen3-0.6B", revision="abc") == tmp_path
    assert (download["repo_id"], download["revision"]) == ("Qwen/Qwen3-0.6B", "abc")


@pytest.mark.parametrize("find", [source.resolve, source.locate])
def test_what_is_here_has_no_revision(
    find: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    download: dict[str, Any],
) -> None:
    """Also where its name could be one of the hub."""
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model, what in (("org/name", "local folder"), (source.SHIPPED, "the shipped")):
        assert find(model).is_dir()
        told = f"revision is 'abc', but '{model}' is .*{what}.*leave the revision out"
        with pytest.raises(ConfigError, match=told):
            find(model, revision="abc")
    assert not download


def test_a_configuration_alone_is_its_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "llama.json"
    path.touch()
    assert source.locate(str(path)) == source.locate(path) == path
    with pytest.raises(ConfigError, match=r"llama.json' is a local file.*leave the"):
        source.locate(path, revision="abc")
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        source.locate(path.rename(tmp_path / "llama.txt"))


def test_a_folder_with_the_name_of_a_file_is_a_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "llama.json").mkdir()
    assert source.locate(tmp_path / "llama.json") == tmp_path / "llama.json"


def test_only_data_is_downloaded(download: dict[str, Any]) -> None:
    source.resolve("org/name")
    wanted = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "merges.txt",
        "chat_template.jinja",
    ]
    unwanted = [
        "modeling_x.py",
        "pytorch_model.bin",
        "model.pt",
        "training_args.bin",
        "flax_model.msgpack",
        "consolidated.safetensors",
        "original/model.safetensors",
        "onnx/config.json",
    ]
    patterns = {k: download[k] for k in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*wanted, *unwanted], **patterns)) == wanted


def test_offline(failing: list[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    failing.append(errors.LocalEntryNotFoundError("not cached"))
    with pytest.raises(ConfigError, match=r"'org/name'.*HF_HUB_OFFLINE.*local folder"):
        source.resolve("org/name")


def test_offline_through_the_real_client(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.*not in the cache"):
        source.resolve("org/name")


@pytest.mark.parametrize(
    "error",
    [
        OSError("no route"),
        ValueError("odd"),
        errors.EntryNotFoundError("x"),
        RuntimeError(),
    ],
)
def test_without_a_network(failing: list[Exception], error: Exception) -> None:
    failing.append(error)
    with pytest.raises(ConfigError) as raised:
        source.resolve("org/name", revision="v1")
    message = str(raised.value)
    for part in (
        "'org/name'",
        "'v1'",
        constants.ENDPOINT,
        "hf download",
        type(error).__name__,
    ):
        assert part in message


def _hub_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "from the hub")
    return error


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "gated; accept its terms.*hf auth login"),
        (errors.RevisionNotFoundError, "no such revision"),
        (errors.RepositoryNotFoundError, "no such model, or a private one"),
    ],
)
def test_refusals_of_the_hub(
    failing: list[Exception], kind: type[errors.HfHubHTTPError], message: str
) -> None:
    failing.append(_hub_error(kind))
    with pytest.raises(ConfigError, match=message):
        source.resolve("org/name")


def test_the_hub_client_is_imported_only_when_needed() -> None:
    program = (
        "import sys; from fdjax.models import source; source.resolve('tales-5m'); "
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
