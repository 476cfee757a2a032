"""fdjax's attention in sgl-jax's own engine gives the tokens of sgl-jax's own."""

import ast
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.stacks import docs_example, tiny_models
from tests.stacks.sgl_jax_engine import NEW_TOKENS, PROMPTS
from tests.support.hf_model import TALES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sgl_jax") is None,
    reason="`.ci/run stacks` installs sgl-jax, into an environment of its own",
)

ENGINE, COMPILATIONS = "sgl_jax_engine", "sgl_jax_compilations"


def run(program: str, *arguments: object, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.stacks.{program}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_tokens_are_those_of_its_own_backend(
    family: tiny_models.Family, tmp_path: pathlib.Path
):
    """With chunks of prompts, and the second time with prefixes that are found."""
    folder = tiny_models.make(tmp_path / family, family)
    first, second, alone = ours = run(ENGINE, folder, "fdjax")
    assert ours == run(ENGINE, folder, "native")
    assert {len(tokens) for tokens, _ in first + second + alone} == {NEW_TOKENS}
    assert len({tuple(tokens) for tokens, _ in first}) == len(PROMPTS), "all alike"
    assert [cached for _, cached in second] == [32, 0, 64, 0]


def test_what_has_been_served_compiles_nothing(tmp_path: pathlib.Path):
    """Of the second round the prompts are found in the cache: they may compile."""
    first, _, third = run(COMPILATIONS, tiny_models.make(tmp_path / "llama", "llama"))
    assert first > 0
    assert third == 0


def test_the_cache_is_not_copied(tmp_path: pathlib.Path):
    """In no program that takes the cache is there a copy of its shape.

    Among them are those of one row, which have one token to write.
    """
    folder = tiny_models.make(tmp_path / "llama", "llama")
    dump = tmp_path / "hlo"
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
    run(ENGINE, folder, "fdjax", XLA_FLAGS=flags)
    shape = re.compile(r"f32\[\d+,16,\d+,\d+,128\]")
    programs = [
        text
        for path in dump.glob("*after_optimizations.txt")
        if "input_output_alias" in (text := path.read_text()) and shape.search(text)
    ]
    starts = [re.findall(r"s32\[(\d+)\]", text.partition("\n")[0]) for text in programs]
    assert any("2" in sizes for sizes in starts), "none of one row: [B + 1] starts"
    for text in programs:
        copies = [line for line in text.splitlines() if " copy(" in line]
        assert not [line for line in copies if shape.search(line.split(" copy(")[0])]


def test_the_example_of_the_docs_runs():
    """With the model in the package, and not all of the machine's memory."""
    instead = {
        '"Qwen/Qwen3-8B"': repr(str(TALES)),
        "page_size=16,": "page_size=16, max_total_tokens=1024,",
    }
    printed = docs_example.run("sgl-jax", instead=instead)
    output = ast.literal_eval(printed.splitlines()[-1])
    assert 0 < len(output["output_ids"]) <= 40
    assert re.search("[a-z]{3}", output["text"])
