import json
import os
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.errors import CheckpointError
from fdjax.models import safetensors_file
from fdjax.models.safetensors_file import READABLE, read_header, read_tensor
from tests.support.safetensors_writer import header_of, write_file, write_raw

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)
TENSORS = {"a": A, "b": B}
DATA = A.tobytes() + B.tobytes()


def _header(**changes: Any) -> bytes:
    header = header_of(TENSORS)
    header["a"] |= changes
    return json.dumps(header).encode()


def _problem(path: pathlib.Path) -> str:
    (problem,) = read_header(path).problems
    return problem


def test_reads_what_the_safetensors_library_writes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        **TENSORS,
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float32(3),
    }
    tensors = {name: np.asarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np"})
    header = read_header(path)
    assert header.problems == ()
    assert header.tensors.keys() == tensors.keys()
    for name, array in tensors.items():
        tensor = header.tensors[name]
        read = np.empty(tensor.shape, READABLE[tensor.dtype])
        read_tensor(tensor, read)
        np.testing.assert_array_equal(read, array, strict=True)


def test_the_library_reads_what_the_tests_write(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.safetensors"
    write_file(path, TENSORS)
    loaded = safetensors.numpy.load_file(path)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        name: array.tolist() for name, array in TENSORS.items()
    }


_WHOLE_FILE = {
    "empty": (b"", "0 bytes, too few for a header length"),
    "length only": (b"\x05" + 7 * b"\0", "header of 5 bytes and has 8 bytes in all"),
    "truncated header": (b"\x40" + 7 * b"\0" + b"{}", "it is truncated"),
    "giant header": (b"\xff" * 8, "the format allows 100000000"),
    "pickle": (b"\x80\x02}q\x00X\x01\x00\x00\x00a.", "is it a safetensors file"),
}


@pytest.mark.parametrize("case", _WHOLE_FILE.values(), ids=_WHOLE_FILE)
def test_refuses_a_length_that_cannot_be(
    tmp_path: pathlib.Path, case: tuple[bytes, str]
) -> None:
    content, message = case
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert message in _problem(path)
    assert "x.safetensors" in _problem(path)


_HEADERS = {
    "not json": (b"{", "its header is not sound"),
    "not utf-8": (b"\xff\xfe{}", "its header is not sound"),
    "not an object": (b"[]", "holds a JSON list, not an object"),
    "nested": (b"[" * 100_000, "nested too deeply"),
    "long number": (b'{"a": ' + b"9" * 5000 + b"}", "its header is not sound"),
    "duplicate": (b'{"a": 1, "a": 1}', "has the key 'a' twice"),
    "metadata": (b'{"__metadata__": {"a": 1}}', "not an object of strings"),
    "metadata list": (b'{"__metadata__": []}', "not an object of strings"),
}


@pytest.mark.parametrize("case", _HEADERS.values(), ids=_HEADERS)
def test_refuses_a_header_that_is_not_one(
    tmp_path: pathlib.Path, case: tuple[bytes, str]
) -> None:
    header, message = case
    path = tmp_path / "x.safetensors"
    write_raw(path, header, DATA)
    assert message in _problem(path)
    assert read_header(path).tensors == {}


_ENTRIES = {
    "unknown dtype": ({"dtype": "F12"}, "unknown dtype 'F12'"),
    "dtype no string": ({"dtype": ["F32"]}, "unknown dtype"),
    "wider dtype": ({"dtype": "F64"}, "needs 48 bytes (F64 [2, 3]) but has 24"),
    "part of a byte": ({"dtype": "F4", "shape": [49]}, "needs 24.5 bytes"),
    "larger shape": ({"shape": [2, 4]}, "needs 32 bytes (F32 [2, 4]) but has 24"),
    "giant shape": ({"shape": [2**62, 2**62]}, "but has 24"),
    "negative shape": ({"shape": [-2, -3]}, "has the shape [-2, -3]"),
    "fractional shape": ({"shape": [2.0, 3]}, "has the shape [2.0, 3]"),
    "shape of booleans": ({"shape": [True, 6]}, "has the shape [True, 6]"),
    "shape no list": ({"shape": 6}, "has the shape 6"),
    "long shape": ({"shape": [1] * 100 + [6]}, "at most 64 sizes"),
    "negative offset": ({"data_offsets": [-8, 16]}, "has the data_offsets [-8, 16]"),
    "offsets reversed": ({"data_offsets": [24, 0]}, "has the data_offsets [24, 0]"),
    "one offset": ({"data_offsets": [24]}, "has the data_offsets [24]"),
    "past the end": ({"data_offsets": [16, 40]}, "ends at byte 40 of the data"),
    "unknown field": ({"offset": 0}, "not described by dtype, shape and data_offsets"),
}


@pytest.mark.parametrize("case", _ENTRIES.values(), ids=_ENTRIES)
def test_refuses_an_entry_that_lies(
    tmp_path: pathlib.Path, case: tuple[dict[str, Any], str]
) -> None:
    changes, message = case
    path = tmp_path / "x.safetensors"
    write_raw(path, _header(**changes), DATA)
    header = read_header(path)
    (problem,) = header.problems
    assert message in problem
    assert "tensor 'a'" in problem
    assert (header.faulty, header.tensors.keys()) == ({"a"}, {"b"})


def test_refuses_overlaps_and_unused_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, _header(data_offsets=[4, 28]), DATA)
    assert read_header(path).problems == (
        "x.safetensors: 4 unused bytes lie before tensor 'a'",
        "x.safetensors: tensor 'b' overlaps tensor 'a' by 4 bytes",
    )
    write_raw(path, _header(), DATA + b"\0")
    assert "1 unused bytes lie behind tensor 'b'" in _problem(path)


def test_reports_every_truncated_tensor(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, _header(), DATA[:20])
    problems = read_header(path).problems
    assert len(problems) == 2
    assert "tensor 'a' ends at byte 24 of the data, which has 20 bytes" in problems[0]
    assert "tensor 'b' ends at byte 32" in problems[1]


def test_refuses_what_is_not_a_regular_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    assert "not a regular file" in _problem(tmp_path / "folder.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "not a regular file" in _problem(tmp_path / "pipe.safetensors")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_survives_any_damage(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write_file(path, TENSORS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    header = read_header(path)
    if not header.problems:
        for tensor in header.tensors.values():
            if tensor.dtype in READABLE:
                read_tensor(tensor, np.empty(tensor.shape, READABLE[tensor.dtype]))


def _all_bit_patterns(dtype: Any) -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(dtype)


@pytest.mark.parametrize("stored", [np.float16, jnp.bfloat16])
def test_widening_is_exact(tmp_path: pathlib.Path, stored: Any) -> None:
    array = _all_bit_patterns(stored)
    array = array[np.isfinite(array.astype(np.float32))]
    write_file(tmp_path / "x", {"a": array})
    read = np.empty(array.shape, np.float32)
    read_tensor(read_header(tmp_path / "x").tensors["a"], read)
    np.testing.assert_array_equal(read, array.astype(np.float32))


@pytest.mark.parametrize("target", [np.float16, jnp.bfloat16])
def test_narrowing_rounds_to_nearest(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    monkeypatch.setattr(safetensors_file, "_CHUNK_BYTES", 1000)  # several chunks
    array = np.random.default_rng(0).normal(size=(33, 77)).astype(np.float32)
    write_file(tmp_path / "x", {"a": array})
    read = np.empty(array.shape, target)
    read_tensor(read_header(tmp_path / "x").tensors["a"], read)
    np.testing.assert_array_equal(read, array.astype(target))


@pytest.mark.parametrize("stored", [np.float32, jnp.bfloat16])
def test_a_value_that_would_become_infinite_is_refused(
    tmp_path: pathlib.Path, stored: Any
) -> None:
    write_file(tmp_path / "x", {"a": np.array([1, 1e5], stored)})
    tensor = read_header(tmp_path / "x").tensors["a"]
    with pytest.raises(CheckpointError, match=r"'a'.*beyond 65504.*bfloat16"):
        read_tensor(tensor, np.empty(2, np.float16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [np.float16, jnp.bfloat16, np.float32])
@pytest.mark.parametrize("target", [np.float16, jnp.bfloat16, np.float32])
def test_a_value_that_is_not_finite_is_refused(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: Any,
    target: Any,
    value: float,
) -> None:
    """In any chunk, whether or not it is cast; not the largest, nor the smallest."""
    monkeypatch.setattr(safetensors_file, "_CHUNK_BYTES", 1000)
    array = np.linspace(-1, 1, 3000).astype(stored)
    array[1] = jnp.finfo(stored).tiny
    write_file(tmp_path / "x", {"a": array})
    read_tensor(read_header(tmp_path / "x").tensors["a"], np.empty(3000, target))
    array[2700] = value
    write_file(tmp_path / "x", {"a": array})
    with pytest.raises(CheckpointError, match=r"'a' holds values that are not finite"):
        read_tensor(read_header(tmp_path / "x").tensors["a"], np.empty(3000, target))


@pytest.mark.parametrize("stored", [np.float16, jnp.bfloat16, np.float32])
def test_the_largest_value_is_finite(tmp_path: pathlib.Path, stored: Any) -> None:
    largest = float(jnp.finfo(stored).max)
    write_file(tmp_path / "x", {"a": np.array([largest, -largest], stored)})
    read = np.empty(2, stored)
    read_tensor(read_header(tmp_path / "x").tensors["a"], read)
    assert [float(value) for value in read] == [largest, -largest]


def test_a_file_that_shrinks_after_the_check_is_an_error(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "x.safetensors"
    write_file(path, TENSORS)
    tensor = read_header(path).tensors["b"]
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="'b' ends 2 bytes early"):
        read_tensor(tensor, np.empty(4, np.float16))
