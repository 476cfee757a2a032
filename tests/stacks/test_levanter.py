"""Levanter's engine generates with fdjax what it generates without."""

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.stacks import docs_example
from tests.support.numerics import relative_error, tolerance

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("levanter") is None,
    reason="`.ci/run stacks` installs Levanter, into an environment of its own",
)

PROGRAM = pathlib.Path(__file__).with_name("levanter_engine.py")
REDUCTION = 96  # tokens of a row at the end, and the widest sum of a layer
LIMIT = tolerance(np.float32, reduction=REDUCTION)


def run(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found() -> Any:
    return run()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_tokens_are_those_of_its_own_attention(found: Any, family: str):
    """Greedy, and in draws whose prompt's last page is copied."""
    ours, theirs = found[family]["ours"], found[family]["theirs"]
    assert {len(tokens) for tokens in ours["tokens"]} == {24}
    assert len({tuple(tokens) for tokens in ours["tokens"]}) == 5, "all alike"
    assert ours["tokens"] == theirs["tokens"]
    for one, other in zip(ours["logprobs"], theirs["logprobs"], strict=True):
        assert relative_error(one, other) <= LIMIT


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_and_caches_are_those_of_its_own_attention(found: Any, family: str):
    assert found[family]["logits"] <= LIMIT
    assert found[family]["caches"] <= LIMIT


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_new_model_needs_no_new_program(found: Any, family: str):
    assert found[family]["again"]
    assert found[family]["new programs"] == 0


def test_the_cache_is_not_copied(found: Any):
    assert found["llama"]["copies"] == found["qwen3"]["copies"] == 0


def test_what_it_cannot_do_it_refuses_by_name(found: Any):
    refused = found["refused"]
    place = "LlamaLMHeadModel.transformer.layers.stacked.self_attn"
    assert refused["gated"].startswith(f"{place} is a GatedAttention")
    assert refused["window"].startswith(f"{place} attends in a window of 16 tokens")
    assert refused["no paged decoding"].startswith("GemmaLMHeadModel has no paged")
    assert "float32, the cache bfloat16" in refused["types"]


def test_what_has_it_already_is_left_so(found: Any):
    assert found["class"] == "FdjaxAttention"


def test_heads_on_two_devices():
    found = run("devices")
    assert found["heads of a device"] == 2, "of 4, keys and values together"
    assert found["logits"] <= LIMIT
    assert found["caches"] <= LIMIT


def test_the_example_of_the_docs_runs():
    (tokens,) = json.loads(docs_example.run("Levanter"))
    assert len(tokens) == 37, "40 with the prompt's 3"
