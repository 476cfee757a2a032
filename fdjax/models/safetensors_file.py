"""Safetensors files: a header checked against the file before any of it is trusted.

The format: 8 bytes of header length (little endian), the header (a JSON object of
tensor name to dtype, shape and byte range), then the tensors' bytes without gaps.
"""

import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fdjax.errors import CheckpointError
from fdjax.models.regular_files import MAX_BYTES, regular_bytes
from fdjax.models.strict_json import parse_object

_LENGTH_BYTES = 8
_LFS_START = b"version "
_MAX_RANK = 64  # NumPy's own limit
_CHUNK_BYTES = 1 << 20

# Every dtype of the format, so that a tensor nobody needs does not make a file invalid.
_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

READABLE: Mapping[str, np.dtype[Any]] = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
}
"""The dtypes that weights may be stored in."""

# The bits of the exponent, which are all set where a value is infinite or no number.
_EXPONENTS = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F80_0000}


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies.

    Attributes:
        name: its name in the header.
        path: the file that holds it.
        dtype: as the format names it, for example "BF16".
        shape: its shape.
        start: its first byte, counted from the start of the file.
        num_bytes: its length.
    """

    name: str
    path: pathlib.Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """What a file says it holds.

    Attributes:
        tensors: the tensors whose entries are sound, by name.
        faulty: names whose entries are not; each has a problem.
        problems: every fault found, one sentence each.
    """

    tensors: dict[str, Tensor]
    faulty: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def read_header(path: pathlib.Path) -> Header:
    """Reads and checks the header of one file; reports faults, raises nothing."""
    try:
        entries, data_start, data_bytes = _read_entries(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Header({}, problems=(f"{path.name} cannot be read: {reason}",))
    tensors: dict[str, Tensor] = {}
    problems: list[str] = []
    for name, entry in entries.items():
        try:
            tensors[name] = _tensor(name, entry, path, data_start, data_bytes)
        except ValueError as error:
            problems.append(f"{path.name}: tensor {name!r} {error}")
    faulty = frozenset(entries.keys() - tensors.keys())
    if not faulty:
        gaps = _gaps(tensors, data_start, data_start + data_bytes)
        problems += [f"{path.name}: {gap}" for gap in gaps]
    return Header(tensors, faulty, tuple(problems))


def _read_entries(path: pathlib.Path) -> tuple[dict[str, Any], int, int]:
    regular_bytes(path)
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        if file_bytes < _LENGTH_BYTES:
            raise ValueError(f"it has {file_bytes} bytes, too few for a header length")
        length = file.read(_LENGTH_BYTES)
        if length == _LFS_START:
            raise ValueError(
                "it is a git-lfs pointer; fetch the file with git lfs pull"
            )
        header_bytes = int.from_bytes(length, "little")
        data_start = _LENGTH_BYTES + header_bytes
        if header_bytes > MAX_BYTES:
            raise ValueError(
                f"it promises a header of {header_bytes} bytes; the format allows "
                f"{MAX_BYTES} (is it a safetensors file?)"
            )
        if data_start > file_bytes:
            raise ValueError(
                f"it promises a header of {header_bytes} bytes and has {file_bytes} "
                "bytes in all; it is truncated"
            )
        text = file.read(header_bytes)
    try:
        entries = parse_object(text)
    except ValueError as error:
        raise ValueError(f"its header is not sound: {error}") from error
    _check_metadata(entries.pop("__metadata__", {}))
    return entries, data_start, file_bytes - data_start


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise ValueError("its __metadata__ is not an object of strings")


def _tensor(
    name: str, entry: object, path: pathlib.Path, data_start: int, data_bytes: int
) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {
        "dtype",
        "shape",
        "data_offsets",
    }:
        raise ValueError("is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"has the unknown dtype {dtype!r}")
    if not _is_naturals(shape) or len(shape) > _MAX_RANK:
        raise ValueError(
            f"has the shape {shape!r:.100}, not a list of at most {_MAX_RANK} sizes"
        )
    if not _is_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"has the data_offsets {offsets!r:.100}, not [begin, end]")
    begin, end = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (end - begin):
        raise ValueError(
            f"needs {bits / 8:g} bytes ({dtype} {shape}) but has {end - begin}"
        )
    if end > data_bytes:
        raise ValueError(
            f"ends at byte {end} of the data, which has {data_bytes} bytes; the file "
            "is truncated or its header lies"
        )
    return Tensor(name, path, dtype, tuple(shape), data_start + begin, end - begin)


def _is_naturals(value: object) -> bool:
    # JSON's true is a Python int.
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _gaps(tensors: Mapping[str, Tensor], start: int, end: int) -> Iterator[str]:
    """Overlaps and unused bytes, which the format forbids."""
    previous, position = "the header", start
    ordered = sorted(tensors.values(), key=lambda t: (t.start, t.num_bytes))
    for tensor in ordered:
        if tensor.start < position:
            overlap = position - tensor.start
            yield f"tensor {tensor.name!r} overlaps {previous} by {overlap} bytes"
        elif tensor.start > position:
            unused = tensor.start - position
            yield f"{unused} unused bytes lie before tensor {tensor.name!r}"
        previous = f"tensor {tensor.name!r}"
        position = max(position, tensor.start + tensor.num_bytes)
    if position < end:
        yield f"{end - position} unused bytes lie behind {previous}"


def read_tensor(tensor: Tensor, destination: np.ndarray) -> None:
    """Reads a tensor into `destination`, cast to its dtype.

    Beside `destination`, host memory holds at most two chunks of 1 MiB. Values are
    looked at while they are in the processor's cache: 0.06 s a gigabyte.

    Args:
        tensor: one whose dtype is in `READABLE`.
        destination: a contiguous array with as many elements.

    Raises:
        CheckpointError: the file has become shorter since its header was read, a value
            is not finite, or it is infinite in the destination's dtype.
    """
    stored = READABLE[tensor.dtype]
    flat = destination.reshape(-1)
    assert flat.size * stored.itemsize == tensor.num_bytes, (tensor, flat.size)
    assert np.shares_memory(flat, destination) or not flat.size, "not contiguous"
    with tensor.path.open("rb", buffering=0) as file:
        file.seek(tensor.start)
        step = _CHUNK_BYTES // stored.itemsize
        chunk = np.empty(min(flat.size, step), stored)
        for first in range(0, flat.size, step):
            part = flat[first : first + step]
            source = part if part.dtype == stored else chunk[: part.size]
            _fill(file, source, tensor)
            _check_finite(source, tensor)
            if source is not part:
                _cast(source, part, tensor)


def same_tensor(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are stored alike, bit for bit."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with a.path.open("rb") as a_file, b.path.open("rb") as b_file:
        a_file.seek(a.start)
        b_file.seek(b.start)
        for first in range(0, a.num_bytes, _CHUNK_BYTES):
            chunk_bytes = min(_CHUNK_BYTES, a.num_bytes - first)
            if a_file.read(chunk_bytes) != b_file.read(chunk_bytes):
                return False
    return True


def _fill(file: Any, flat: np.ndarray, tensor: Tensor) -> None:
    view = memoryview(flat.view(np.uint8))
    while view:
        num_read = file.readinto(view)
        if not num_read:
            problem = f"tensor {tensor.name!r} ends {len(view)} bytes early"
            raise CheckpointError(str(tensor.path), [problem])
        view = view[num_read:]


def _check_finite(values: np.ndarray, tensor: Tensor) -> None:
    # By their bits, as NumPy has no arithmetic of its own for bfloat16.
    bits = values.view(f"u{values.dtype.itemsize}")
    exponent = bits.dtype.type(_EXPONENTS[tensor.dtype])
    if (bits & exponent).max() == exponent:
        problem = (
            f"tensor {tensor.name!r} holds values that are not finite (NaN or "
            "infinite), with which no token could be drawn; fetch the file again, or "
            "ask its author"
        )
        raise CheckpointError(str(tensor.path), [problem])


def _cast(source: np.ndarray, destination: np.ndarray, tensor: Tensor) -> None:
    with np.errstate(over="ignore"):
        destination[...] = source
    if jnp.finfo(destination.dtype).max >= jnp.finfo(source.dtype).max:
        return
    if np.any(np.isinf(destination)):
        limit = float(jnp.finfo(destination.dtype).max)
        problem = (
            f"tensor {tensor.name!r} ({tensor.dtype}) holds values beyond {limit:g}, "
            f"the largest of {destination.dtype}; load it as bfloat16 or float32"
        )
        raise CheckpointError(str(tensor.path), [problem])
