"""What a model's generation_config.json recommends."""

import json
import pathlib

import pytest

from fdjax import BeamSearch, ConfigError, SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.generation_config import (
    default_sampling,
    eos_token_ids,
    recommended_sampling,
)


def folder_with(path: pathlib.Path, fields: object) -> pathlib.Path:
    (path / "generation_config.json").write_text(json.dumps(fields))
    return path


def test_without_the_file_nothing_is_recommended(tmp_path: pathlib.Path):
    assert recommended_sampling(tmp_path) == {}
    assert eos_token_ids(tmp_path) == ()


def test_the_shipped_model_only_names_its_end():
    assert recommended_sampling(resolve(SHIPPED)) == {}
    assert eos_token_ids(resolve(SHIPPED)) == (1,)


def test_fields_become_parameters(tmp_path: pathlib.Path):
    fields = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": None,
        "eos_token_id": [128001, 128009],
        "do_sample": True,
        "max_length": 4096,
    }
    assert recommended_sampling(folder_with(tmp_path, fields)) == {
        "temperature": 0.6,
        "top_p": 0.9,
    }
    assert eos_token_ids(tmp_path) == (128001, 128009)


@pytest.mark.parametrize("value", [None, []])
def test_a_model_may_have_no_end(tmp_path: pathlib.Path, value: object):
    assert eos_token_ids(folder_with(tmp_path, {"eos_token_id": value})) == ()


@pytest.mark.parametrize("fields", [{"temperature": -1}, {"top_k": "x"}, []])
def test_what_cannot_be_used_is_named(tmp_path: pathlib.Path, fields: object):
    with pytest.raises(ConfigError, match=r"generation_config\.json cannot be used"):
        recommended_sampling(folder_with(tmp_path, fields))


@pytest.mark.parametrize("value", ["x", -1, 2**31, True, [1, 2.5]])
def test_ends_that_are_no_token_ids_are_named(tmp_path: pathlib.Path, value: object):
    with pytest.raises(ConfigError, match=r"cannot be used: eos_token_id is"):
        eos_token_ids(folder_with(tmp_path, {"eos_token_id": value}))


def test_what_a_model_is_sampled_by(tmp_path: pathlib.Path):
    folder = folder_with(tmp_path, {"temperature": 0.6, "top_k": 7})
    assert default_sampling(folder, "auto", None) == SamplingParams(
        temperature=0.6, top_k=7
    )
    assert default_sampling(folder, "vllm", None) == SamplingParams()
    assert default_sampling(folder, "auto", {"top_k": 3, "max_tokens": 9}) == (
        SamplingParams(temperature=0.6, top_k=3, max_tokens=9)
    )


@pytest.mark.parametrize(
    ("source", "override", "message"),
    [
        ("other", None, "generation_config is 'other'; use auto, or vllm"),
        ("auto", {"top_p": 7}, "override_generation_config: top_p is 7"),
        ("auto", {"beams": 7}, "override_generation_config: .*beams"),
        ("auto", {"beam_search": {"beam_width": 2}}, ".*beam_search is .*; use Beam"),
    ],
)
def test_what_it_is_not_sampled_by(
    tmp_path: pathlib.Path, source: str, override: dict[str, object], message: str
):
    with pytest.raises(ConfigError, match=message):
        default_sampling(tmp_path, source, override)


def test_a_search_takes_nothing_that_a_model_recommends_for_draws(
    tmp_path: pathlib.Path,
):
    search = BeamSearch(beam_width=2)
    folder = folder_with(tmp_path, {"temperature": 0.6})
    remedy = 'temperature is 0.6.*recommends temperature, and generation_config="vllm"'
    with pytest.raises(ConfigError, match=remedy):
        default_sampling(folder, "auto", {"beam_search": search})
    params = default_sampling(folder, "vllm", {"beam_search": search})
    assert params == SamplingParams(beam_search=search)
