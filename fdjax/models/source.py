"""Where a model comes from: a folder, the package itself, or the Hugging Face hub."""

import importlib.resources
import pathlib
import re
from collections.abc import Sequence

from fdjax.errors import ConfigError
from fdjax.models.regular_files import check_folder

SHIPPED = "tales-5m"
"""The model inside the package, small enough to try anything with."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Nothing that could run: no Python, no pickles. Subfolders hold other formats, and
# Mistral's "consolidated" files the same weights a second time.
_READ_WHOLE = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_READ_IN_PARTS = ("*.safetensors",)
WANTED = (*_READ_WHOLE, *_READ_IN_PARTS)
_UNWANTED = ["*/*", "consolidated*"]


def locate(
    model: str | pathlib.Path,
    *,
    revision: str | None = None,
    wanted: Sequence[str] = WANTED,
) -> pathlib.Path:
    """Finds what holds a model's configuration: its folder, or that file alone.

    Args:
        model: a file such as "llama.json", or see `resolve`, as for the others.
        revision: see there.
        wanted: see there.

    Raises:
        ConfigError: see there.
    """
    path = pathlib.Path(model).expanduser()
    if path.suffix == ".json" and path.is_file():
        _check_no_revision(model, revision, "a local file")
        return path
    return resolve(model, revision=revision, wanted=wanted)


def resolve(
    model: str | pathlib.Path,
    *,
    revision: str | None = None,
    wanted: Sequence[str] = WANTED,
) -> pathlib.Path:
    """Finds the folder of a model, downloading it where necessary.

    Args:
        model: an existing folder, `SHIPPED`, or a hub id such as "Qwen/Qwen3-8B".
        revision: branch, tag or commit on the hub; refused for a model from elsewhere.
        wanted: patterns of the files to download from there.

    Raises:
        ConfigError: there is no such folder, the name is none of the three, the hub
            could not give the model, a revision is wanted of one that has none, or a
            file of it is no regular file or too large; the message says what to do.
    """
    folder = _found(model, revision, wanted)
    try:
        check_folder(folder, whole=_READ_WHOLE, mapped=_READ_IN_PARTS)
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}; replace or remove it") from error
    return folder


def _found(
    model: str | pathlib.Path, revision: str | None, wanted: Sequence[str]
) -> pathlib.Path:
    folder = pathlib.Path(model).expanduser()
    if model != "" and folder.is_dir():
        _check_no_revision(model, revision, "a local folder")
        return folder
    if folder.is_file():
        raise ConfigError(
            f"{folder} is a file; give the folder that holds it and its config.json"
        )
    if model == SHIPPED:
        _check_no_revision(model, revision, "the shipped model")
        return _shipped()
    if isinstance(model, str) and _HUB_ID.fullmatch(model) and ".." not in model:
        return _download(model, revision, wanted)
    raise ConfigError(
        f"there is no folder {str(model)!r}, nor is this a hub id (organisation/name) "
        f"or the shipped model ({SHIPPED!r})"
    )


def _check_no_revision(
    model: str | pathlib.Path, revision: str | None, what: str
) -> None:
    """Refuses what would not be read; several models may share one `revision`."""
    if revision is not None:
        raise ConfigError(
            f"revision is {revision!r}, but {str(model)!r} is {what}, and only models "
            "of the hub have revisions; leave the revision out"
        )


def _shipped() -> pathlib.Path:
    package = importlib.resources.files("fdjax")
    folder = pathlib.Path(str(package.joinpath("assets", SHIPPED)))
    if not folder.is_dir():
        raise ConfigError(f"the shipped model is missing from the package: {folder}")
    return folder


def _download(model: str, revision: str | None, wanted: Sequence[str]) -> pathlib.Path:
    import huggingface_hub
    from huggingface_hub import constants

    try:
        folder = huggingface_hub.snapshot_download(
            model,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=_UNWANTED,
        )
    except Exception as error:  # of the hub's, of two HTTP clients', or the system's
        at = f" at revision {revision!r}" if revision else ""
        raise ConfigError(
            f"there is no local folder {model!r}, and the hub ({constants.ENDPOINT}) "
            f"did not give that model{at}: {_reason(error)}"
        ) from error
    return pathlib.Path(folder)


def _reason(error: Exception) -> str:
    from huggingface_hub import errors, is_offline_mode

    if isinstance(error, errors.GatedRepoError):
        return "access is gated; accept its terms there and log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "it has no such model, or a private one (`hf auth login`)"
    if is_offline_mode():
        return (
            "HF_HUB_OFFLINE is set and the model is not in the cache; unset it, or "
            "give a local folder"
        )
    return (
        f"{type(error).__name__}: {error}\nIf this machine has no network, give a "
        "local folder, or run `hf download` elsewhere and copy the folder here"
    )
