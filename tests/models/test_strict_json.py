"""Objects of untrusted files; how each reader words a refusal is tested with it."""

import pathlib

import pytest

from fdjax.models.regular_files import MAX_BYTES
from fdjax.models.strict_json import parse_object, read_object


def test_an_object_is_read_as_json_reads_it(tmp_path: pathlib.Path):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, {"a": null}], "ä": 0.5}', encoding="utf-8")
    assert read_object(path) == {"a": [1, {"a": None}], "ä": 0.5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"b": [{"a": 1, "a": 1}]}', "the key 'a' twice"),
        (b'{"b": 1, "a": 2, "b": {}}', "the key 'b' twice"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"{} {}", "Extra data"),
        (b"null", "a JSON NoneType, not an object"),
    ],
    ids=["inner key", "key", "deep", "bytes", "two", "null"],
)
def test_everything_else_is_a_value_error(text: bytes, problem: str):
    with pytest.raises(ValueError, match=problem):
        parse_object(text)


def test_a_file_too_large_is_not_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: takes no room on the disk
    monkeypatch.setattr(pathlib.Path, "read_bytes", pytest.fail)
    with pytest.raises(ValueError, match="100000001 bytes; at most 100000000 are read"):
        read_object(path)
