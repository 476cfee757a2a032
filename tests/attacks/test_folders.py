"""Models whose files are hostile."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fdjax.models import SHIPPED, resolve
from tests.support.attacked import QUICK, Attacked, attacked_server
from tests.support.quiet import quiet

# Of a machine that others use; what is wrong is found long before, or never.
BUSY_S = 3.0
PATIENCE_S = 60
TEMPLATE = """{% if messages[0].content == 'a power' %}{{ 10 ** (10 ** 8) % 7 }}
{% elif messages[0].content == 'a range' %}{% for i in range(10 ** 12) %}{% endfor %}
{% elif messages[0].content == 'a fault' %}{{ 1 / 0 }}
{% endif %}{{ messages[0].content }}"""


def copied(to: pathlib.Path) -> pathlib.Path:
    """The shipped model, for changes."""
    shutil.copytree(resolve(SHIPPED), to, dirs_exist_ok=True)
    return to


def changed(path: pathlib.Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Its template does what the first message says; its tokenizer goes astray."""
    folder = copied(tmp_path_factory.mktemp("hostile"))
    changed(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    astray = {"type": "Split", "pattern": {"Regex": "(a+)+$"}}
    split = {**astray, "behavior": "Isolated", "invert": False}
    changed(folder / "tokenizer.json", pre_tokenizer=split)
    options = (*QUICK, "--no-compilation-cache", "--model", str(folder))
    with attacked_server(*options) as one:
        assert one.small().status_code == 200
        yield one


@pytest.mark.parametrize("content", ["a power", "a range", "a fault"])
def test_chat_templates(hostile: Attacked, content: str):
    chat = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
    with quiet(hostile.port) as beside, beside.undisturbed(busy_s=BUSY_S):
        answer = hostile.post("/v1/chat/completions", chat)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


def test_a_tokenizer_that_goes_through_a_text_without_end(hostile: Attacked):
    with quiet(hostile.port) as beside, beside.undisturbed(busy_s=BUSY_S):
        answer = hostile.post("/v1/completions", {"prompt": "a" * 400 + "b"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_weights_that_are_not_finite(tmp_path: pathlib.Path):
    weights = copied(tmp_path) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    name = next(name for name in header if "input_layernorm" in name)
    begin, end = (8 + length + at for at in header[name]["data_offsets"])
    content[begin:end] = b"\xff" * (end - begin)  # NaN in any type
    weights.write_bytes(content)
    with (
        pytest.raises(SystemExit, match=f"{name}.*not finite"),
        attacked_server(*QUICK, "--no-compilation-cache", "--model", str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_files_without_end(tmp_path: pathlib.Path, kind: str):
    config = copied(tmp_path) / "config.json"
    config.unlink()
    if kind == "pipe":
        os.mkfifo(config)
    else:
        config.symlink_to("/dev/zero")
    done = fdjax("inspect", str(tmp_path))
    assert done.returncode == 1
    assert "not a regular file" in done.stderr
    assert "Traceback" not in done.stderr


def fdjax(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command; fails if it goes on for too long."""
    return subprocess.run(
        [sys.executable, "-m", "fdjax", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
