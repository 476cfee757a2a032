"""fdjax's rollouts in Tunix's own cluster give the tokens of Tunix's."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Literal

import jax.numpy as jnp
import pytest

from tests.stacks import docs_example
from tests.support.numerics import assert_close

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tunix") is None,
    reason="`.ci/run stacks` installs Tunix, into an environment of its own",
)

FOLDER = pathlib.Path(__file__).parent
VOCAB = 128  # of the tiny models: terms of the longest sum
PROMPTS, LENGTH = 4, 24
# Two devices: one may be the rollout's alone.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
}


def run(program: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(FOLDER / program), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=os.environ | ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def close(actual: Any, expected: Any) -> None:
    assert_close(jnp.asarray(actual, jnp.float32), expected, reduction=VOCAB)


@pytest.mark.parametrize(
    ("family", "place"), [("llama", "other"), ("qwen2", "same"), ("qwen3", "same")]
)
def test_rollouts_are_those_of_its_own(
    family: Literal["llama", "qwen2", "qwen3"], place: Literal["same", "other"]
):
    """Before the weights change and afterwards, on the trainer's device or another."""
    found = run("tunix_rollouts.py", family, place)
    theirs, ours = found["vanilla"], found["fdjax"]
    for expected, actual in zip(theirs["rounds"], ours["rounds"], strict=True):
        for what in ("tokens", "text", "prompts"):
            assert actual[what] == expected[what]
        close(actual["logprobs"], expected["logprobs"])
        close(actual["scores"], expected["scores"])
    first, second = (each["tokens"] for each in ours["rounds"])
    assert max(map(len, first)) == max(map(len, second)) == LENGTH
    assert first[1] == first[3]
    assert len({tuple(tokens) for tokens in first + second}) == 2 * (PROMPTS - 1)
    # The token that ends an output is not in it.
    assert ours["ended"] == theirs["ended"]
    assert len(ours["ended"][0]) <= 10
    # The third weights are the first again: nothing was traced, copied or taken.
    assert ours["again"] == first
    for what in ("in_place", "given_back", "kept", "placed"):
        assert ours[what], what
    seeded, again, other, unseeded, later = ours["runs"]
    assert seeded == again
    assert len({json.dumps(tokens) for tokens in seeded + other + unseeded + later}) > 9


def test_how_many_steps_a_call_has_changes_no_output():
    """One that a token ends in the middle of a call is cut there; others go on."""
    found = run("tunix_steps.py")
    expected = found["1"]
    lengths = [len(tokens) for tokens in expected["tokens"]]
    assert lengths[0] <= 10 < max(lengths)
    for name in ("7", "default"):
        assert found[name]["tokens"] == expected["tokens"]
        close(found[name]["logprobs"], expected["logprobs"])
    assert (expected["steps"], found["7"]["steps"]) == (1, 7)
    assert found["default"]["steps"] > 1


def test_a_step_of_grpo():
    """Its weights reach the rollout: both give the same log-probabilities."""
    found = run("tunix_training.py")
    assert found["steps"] == 1
    assert len(found["completions"]) == 8
    assert len(set(found["completions"])) == 8, "the samples of a prompt are alike"
    assert len(set(found["rewards"])) > 1
    assert min(found["moved"]) > 0
    close(found["actual"], found["expected"])


REFUSED = {
    "subclass": "Unsupported: the actor is a __main__.Other; fdjax serves Tunix's",
    "adapter": "Unsupported: layers.0.attn.lora is a LoRAParam",
    "mixture": "Unsupported: the actor's config has num_experts=4",
    "devices": "Unsupported: the rollout's mesh has 2 devices",
    "offload": "is in pinned_host memory; fdjax takes weights from the device",
    "parallel": "Unsupported: tensor_parallel_size is 2",
    "mapping": "Unsupported: rollout_mapping_config is given",
    "dtype": "ConfigError: weights cannot be loaded as int8",
    "rows": "ConfigError: max_num_seqs is 0",
    "steps": "ConfigError: steps_per_launch is 0",
    "memory": "MemoryBudgetError: the model does not fit",
    "ambiguous": "Unsupported: top_p is None with temperature 0.9",
    "tempered": "Unsupported: return_logprobs with temperature 0.9",
    "long": "prompt 0 has 61 tokens and up to 24 follow, 85 in all, but kv_cache_size",
    "not text": "RequestError: a prompt is a list",
    "top_p": "RequestError: top_p is 2.0",
    "words": "Unsupported: generate was given images",
    "no prompt": "RequestError: prompt 0 has no tokens besides padding",
    "scored": "ConfigError: prompt 0 has 70 tokens and up to 0 follow, 70 in all",
    "wider": "down_proj.kernel is (64, 32), and (48, 32) is what the rollout was made",
    "deeper": "none missing, 9 (layers.2.attn.k_proj.w",
    "fraction": "ConfigError: memory_fraction is nan; use a fraction between 0 and 1",
    "mapping of arrays": "ConfigError: the parameters are a dict; give nnx.State",
    "hosted": "is an array of numpy's, in the host's memory",
    "integers": "is int32; give floating weights",
    "deleted": "is deleted, perhaps since a jit took it",
    "seed": "RequestError: seed is -3; give whole numbers from 0",
    "temperature": "RequestError: temperature is None; give a number",
    "fewer completions": "are (2, 4) and completion_tokens (1, 4); give [B, P] and",
}


def test_what_it_cannot_do_is_refused_by_name():
    errors = run("tunix_refusals.py")
    assert len(errors.pop("after").split()) == LENGTH
    assert errors.keys() == REFUSED.keys()
    for name, words in REFUSED.items():
        assert words in errors[name], name


def test_the_example_of_the_docs_runs():
    arrays = re.findall(r"array\(\[(.*?)\]", docs_example.run("Tunix"), re.S)
    outputs = [[int(token) for token in each.split(",")] for each in arrays]
    assert len(outputs) == 4
    for tokens in outputs:
        assert 0 < len(tokens) <= 64
        assert set(tokens) <= set(range(VOCAB))
