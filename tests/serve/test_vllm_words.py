"""Keywords of vLLM: what they become, and what is refused."""

import dataclasses
import inspect
import pathlib
from typing import Any

import pytest

from fdjax import LLM, ConfigError, SamplingParams
from fdjax.generate.vllm_fields import ONLY_VLLMS
from fdjax.serve.vllm_words import ALIASES, ONLY, in_our_words

PARAMETERS = inspect.signature(LLM).parameters
DEFAULTS = {
    name: PARAMETERS[name].default
    for name in ("memory_fraction", "page_size", "random_weights")
}


def words(**given: Any) -> dict[str, Any]:
    return in_our_words(given, DEFAULTS, PARAMETERS)


def test_other_words_for_the_same():
    assert words() == DEFAULTS
    given = words(gpu_memory_utilization=0.5, block_size=32, load_format="dummy")
    assert given == {"memory_fraction": 0.5, "page_size": 32, "random_weights": True}
    assert words(block_size=None, load_format="safetensors") == DEFAULTS
    assert words(cpu_offload_gb=0.0) == DEFAULTS


def test_two_words_for_one_thing():
    own = DEFAULTS | {"page_size": 8}
    with pytest.raises(ConfigError, match="page_size and block_size are one thing"):
        in_our_words({"block_size": 32}, own, PARAMETERS)


@pytest.mark.parametrize("name", ONLY)
def test_what_changes_nothing_is_taken_and_all_else_refused(name: str):
    for value in ONLY[name].values:
        assert words(**{name: value}) == DEFAULTS
    for value in ("other", 7, [1]):
        with pytest.raises(ConfigError, match=rf"^{name} is .*serve.*: ."):
            words(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, but fdjax serves 1"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True"),
        ({"enforce_eager": 0}, "enforce_eager is 0, but fdjax serves False only"),
        ({"trust_remote_code": True}, "no code of a repository is run"),
        ({"quantization": "awq"}, "'awq', which is not served: load a checkpoint"),
        ({"load_format": "pt"}, "convert the weights to safetensors"),
    ],
)
def test_a_refusal_says_what_to_do(given: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        LLM(**given)


def test_a_word_that_nobody_knows():
    with pytest.raises(TypeError, match=r"max_sequences; did you mean max_num_seqs\?"):
        LLM(max_sequences=3)


def test_the_page_of_vllm_s_words_has_them_all():
    page = (pathlib.Path(__file__).parents[2] / "docs/coming-from-vllm.md").read_text()
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    words = {*ONLY, *ALIASES, *fields, *ONLY_VLLMS}
    missing = [word for word in words if f"`{word}`" not in page]
    assert not missing


def test_every_word_is_either_ours_or_vllm_s():
    assert not {*ONLY, *ALIASES} & PARAMETERS.keys()
    assert set(ALIASES.values()) <= PARAMETERS.keys()
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert not ONLY_VLLMS.keys() & fields
