"""Safetensors files written byte by byte, so that tests can also write wrong ones."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

_NAMES = {
    np.dtype(np.float16): "F16",
    np.dtype(jnp.bfloat16): "BF16",
    np.dtype(np.float32): "F32",
    np.dtype(np.int32): "I32",
    np.dtype(np.bool_): "BOOL",
}


def header_of(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The header that describes `tensors`, laid out one after the other."""
    header: dict[str, Any] = {}
    begin = 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    return header


def write_raw(path: pathlib.Path, header: bytes, data: bytes) -> None:
    """Writes a file from a header and data that need not fit together."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_file(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a sound file."""
    header = {"__metadata__": {"format": "pt"}, **header_of(tensors)}
    data = b"".join(array.tobytes() for array in tensors.values())
    write_raw(path, json.dumps(header).encode(), data)


def write_shards(
    folder: pathlib.Path, shards: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, str]:
    """Writes files and their index; returns the index's weight map."""
    for file_name, tensors in shards.items():
        write_file(folder / file_name, tensors)
    weight_map = {name: f for f, tensors in shards.items() for name in tensors}
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: pathlib.Path, weight_map: Mapping[str, str]) -> None:
    """Writes an index that need not be true."""
    index = {"metadata": {}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
