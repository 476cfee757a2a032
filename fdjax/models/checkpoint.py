"""Checkpoint folders: one safetensors file or shards with an index, and a config."""

import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fdjax.errors import CheckpointError, ConfigError
from fdjax.models.safetensors_file import Header, Tensor, read_header
from fdjax.models.strict_json import read_object

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# Formats that unpickle, which can run any code; they are never opened.
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_CONVERT = (
    "AutoModelForCausalLM.from_pretrained(SOURCE)"
    ".save_pretrained(TARGET, safe_serialization=True)"
)


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder, found and checked but not read.

    Attributes:
        folder: where it lies.
        tensors: the sound tensors of all files, by name.
        promised: names that an index or a header mentions; one that is not in
            `tensors` has a problem of its own.
        problems: every fault found, one sentence each. A checkpoint with problems
            must not be loaded.
    """

    folder: pathlib.Path
    tensors: Mapping[str, Tensor]
    promised: frozenset[str]
    problems: tuple[str, ...]


def open_checkpoint(folder: pathlib.Path) -> Checkpoint:
    """Finds the tensors of a checkpoint and checks all headers; reads no tensor.

    `model.safetensors` is used where it exists, else the shards that
    `model.safetensors.index.json` names.

    Raises:
        CheckpointError: there is nothing to go by: no safetensors, an unreadable
            single file or index. Other faults are collected in `problems`.
    """
    if (folder / SINGLE_NAME).exists():
        return _open_single(folder)
    if (folder / INDEX_NAME).exists():
        return _open_sharded(folder)
    raise CheckpointError(str(folder), [_no_weights(folder)])


def read_config(
    folder: pathlib.Path, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Reads `config.json`.

    Args:
        folder: the checkpoint.
        overrides: fields that replace or add to the file's.

    Raises:
        ConfigError: the file is missing, unreadable or not a JSON object.
    """
    path = folder / CONFIG_NAME
    if not path.exists():
        raise ConfigError(
            f"{folder} has no {CONFIG_NAME}; a model folder holds {CONFIG_NAME} and "
            f"{SINGLE_NAME} (or shards with {INDEX_NAME}), as save_pretrained writes"
        )
    try:
        return {**read_object(path), **(overrides or {})}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _open_single(folder: pathlib.Path) -> Checkpoint:
    header = read_header(folder / SINGLE_NAME)
    if header.problems and not header.tensors:
        raise CheckpointError(str(folder), list(header.problems))
    return Checkpoint(folder, header.tensors, header.faulty, header.problems)


def _open_sharded(folder: pathlib.Path) -> Checkpoint:
    try:
        homes = _weight_map(read_object(folder / INDEX_NAME))
    except (OSError, ValueError) as error:
        problem = f"{INDEX_NAME} cannot be read: {error}"
        raise CheckpointError(str(folder), [problem]) from error
    headers: dict[str, Header] = {}
    problems: list[str] = []
    for file_name in sorted(set(homes.values())):
        reason = _refuse_file(folder, file_name)
        if reason is None:
            headers[file_name] = read_header(folder / file_name)
            problems += headers[file_name].problems
        else:
            problems.append(f"{INDEX_NAME} names {file_name!r}, which {reason}")
    problems += _misplaced(homes, headers)
    problems += _repeated(headers)
    tensors = {n: t for header in headers.values() for n, t in header.tensors.items()}
    faulty = frozenset(n for header in headers.values() for n in header.faulty)
    return Checkpoint(folder, tensors, faulty | frozenset(homes), tuple(problems))


def _weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("it has no weight_map (an object of tensor name to file name)")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str):
            raise ValueError(
                f"its weight_map gives {file_name!r} as the file of {name!r}"
            )
    return weight_map


def _refuse_file(folder: pathlib.Path, file_name: str) -> str | None:
    # By its letters only: in the hub's cache the files are links out of the folder.
    if not file_name.endswith(".safetensors"):
        return "is not a .safetensors file"
    if any(c in file_name for c in "/\\:\0"):
        return "is not the name of a file in the folder itself"
    if not (folder / file_name).exists():
        return "is not in the folder"
    return None


def _misplaced(
    homes: Mapping[str, str], headers: Mapping[str, Header]
) -> Iterator[str]:
    for name, home in homes.items():
        header = headers.get(home)
        if header is None or name in header.tensors or name in header.faulty:
            continue
        if not header.tensors and header.problems:
            continue  # the whole file is unreadable, which is reported already
        others = [f for f, other in headers.items() if name in other.tensors]
        where = f"; it is in {', '.join(others)}" if others else ""
        yield f"{INDEX_NAME} puts tensor {name!r} in {home}, which lacks it{where}"


def _repeated(headers: Mapping[str, Header]) -> Iterator[str]:
    first: dict[str, str] = {}
    for file_name, header in headers.items():
        for name in header.tensors:
            if name in first:
                yield f"tensor {name!r} is in both {first[name]} and {file_name}"
            first.setdefault(name, file_name)


def _no_weights(folder: pathlib.Path) -> str:
    missing = f"there is no {SINGLE_NAME} and no {INDEX_NAME}"
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        return f"{missing}, only {', '.join(others[:5])}; fetch the missing file"
    pickled = sorted({path.name for glob in _PICKLED for path in folder.glob(glob)})
    if pickled:
        return (
            f"{missing}; {', '.join(pickled[:5])} are pickled and can run any code "
            "when opened, so fdjax never opens them. If you trust their author, "
            f"convert them with transformers: {_CONVERT}"
        )
    return (
        f"{missing}; if the model is published as pickled weights only, convert them "
        f"with transformers: {_CONVERT}"
    )
