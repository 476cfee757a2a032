"""SamplingParams: what is accepted, normalised and refused."""

import copy
import dataclasses
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.generate.params import SamplingParams

NOT_NUMBERS: list[Any] = [None, "1", True, 1j, [1.0], math.nan, math.inf, -math.inf]
NOT_INTEGERS: list[Any] = ["1", True, 1.0, math.nan, [1], 10**6000, -(10**6000)]

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 100.1),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", -0.5),
    ("top_p", 1.0001),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("repetition_penalty", 101),
    ("presence_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", 2.1),
    ("top_k", -2),
    ("top_k", 2**31),
    ("seed", -1),
    ("seed", 2**63),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("min_tokens", -1),
    ("min_tokens", None),
    ("logprobs", -1),
    ("logprobs", 21),
    ("prompt_logprobs", 21),
    ("ignore_eos", 1),
    ("ignore_eos", None),
    ("include_stop_str_in_output", 1),
    ("stop", 3),
    ("stop", b"a"),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [3]),
    ("stop", ["a" * 1025]),
    ("stop", ["a"] * 17),
    ("stop_token_ids", "12"),
    ("stop_token_ids", 3),
    ("stop_token_ids", [1.0]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(65))),
    ("skip_special_tokens", 1),
    ("spaces_between_special_tokens", None),
    ("allowed_token_ids", []),
    ("allowed_token_ids", "12"),
    ("allowed_token_ids", 3),
    ("allowed_token_ids", {1: 2}),
    ("allowed_token_ids", [1.0]),
    ("allowed_token_ids", [-1]),
    ("bad_words", "word"),
    ("bad_words", 3),
    ("bad_words", [""]),
    ("bad_words", [3]),
    ("bad_words", [[]]),
    ("bad_words", [[1.0]]),
    ("bad_words", [[5] * 9]),
    ("bad_words", ["a"] * 129),
    ("bad_words", [[5]] * 257),
    ("logit_bias", [1, 2]),
    ("logit_bias", {"1": 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {1: "1"}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: 100.5}),
    ("logit_bias", dict.fromkeys(range(1025), 1.0)),
]
REALS = [
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
]
INTEGERS = [
    "top_k",
    "seed",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
]


def make(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *OUT_OF_RANGE,
        *[(field, value) for field in REALS for value in NOT_NUMBERS],
        *[(field, value) for field in INTEGERS for value in NOT_INTEGERS],
    ],
    ids=shown,
)
def test_refuses(field: str, value: Any):
    with pytest.raises(RequestError, match=field) as raised:
        make(**{field: value})
    assert "use " in str(raised.value)
    assert len(str(raised.value)) < 200


def test_message_names_field_value_and_range():
    with pytest.raises(RequestError) as raised:
        SamplingParams(top_p=0)
    message = "top_p is 0; use a number above 0 and at most 1"
    assert str(raised.value) == message


def test_min_tokens_beyond_max_tokens():
    with pytest.raises(RequestError, match="min_tokens is 5 but max_tokens is 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=500, max_tokens=None).max_tokens is None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 1e-9, "top_k": 2**31 - 1, "min_p": 0},
        {"temperature": 100, "top_p": 1, "top_k": 1, "min_p": 1},
        {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": -2},
        {"repetition_penalty": 100, "presence_penalty": 2, "frequency_penalty": 2},
        {"seed": 0, "max_tokens": 1, "logprobs": 0},
        {"seed": 2**63 - 1, "max_tokens": 2**31 - 1, "logprobs": 20},
        {"stop": ["a" * 1024] * 16, "include_stop_str_in_output": True},
        {"stop_token_ids": range(64), "logit_bias": dict.fromkeys(range(1024), -100)},
    ],
    ids=" ".join,
)
def test_accepts_the_ends_of_each_range(fields: dict[str, Any]):
    make(**fields)


def test_normalises():
    bias = {np.int32(7): 1}
    params = make(
        temperature=Fraction(1, 2),
        top_p=np.float32(0.5),
        top_k=-1,
        seed=np.int64(3),
        stop="###",
        stop_token_ids=[np.int32(1), 2],
        logit_bias=bias,
    )
    bias.clear()
    assert type(params.temperature) is float
    assert type(params.top_p) is float
    assert type(params.seed) is int
    assert params.top_k == 0
    assert params.stop == ("###",)
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == {7: 1.0}


def test_is_frozen_and_hashable():
    params = make(logit_bias={7: 1.0}, stop_token_ids=[1])
    assert hash(params) == hash(dataclasses.replace(params))
    assert params == dataclasses.replace(params)
    assert params != dataclasses.replace(params, logit_bias={7: 2.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 1  # pyright: ignore[reportAttributeAccessIssue]  (the point)
    with pytest.raises(TypeError):
        params.logit_bias[7] = 2.0  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]  (the point)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("guided_decoding", "vLLM's: give structured_outputs=StructuredOutputs"),
        ("best_of", "SamplingParams has no best_of, which is vLLM's: give n"),
        ("max_token", "has no max_token; did you mean max_tokens?"),
        ("zzz", "SamplingParams has no zzz"),
    ],
)
def test_what_is_no_field_is_named_with_what_is(field: str, message: str):
    with pytest.raises(TypeError, match=re.escape(message)):
        SamplingParams(**{field: None})  # pyright: ignore[reportArgumentType]  (the point)


def test_copies_are_equal():
    params = make(n=2, stop=["x"], bad_words=["y"])
    assert copy.deepcopy(params) == params == copy.copy(params)


def test_greedy_below_a_limit():
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_check_vocabulary(field: str):
    value: Any = {9: 1.0, 10: 1.0} if field == "logit_bias" else [9, 10]
    params = make(**{field: value})
    params.check_vocabulary(11)
    with pytest.raises(RequestError, match=f"{field} names token 10.*has 10 tokens"):
        params.check_vocabulary(10)


def test_what_vllm_leaves_unsaid_by_none():
    params = make(stop=None, stop_token_ids=None, bad_words=None)
    assert params == SamplingParams()


def test_lists_of_tokens_are_normalised():
    params = make(allowed_token_ids=np.array([7, 3, 7]), bad_words=["no", [4, 5]])
    assert params.allowed_token_ids == (7, 3)
    assert params.bad_words == ("no", (4, 5))
    assert params.has_token_lists and not SamplingParams().has_token_lists
    assert params.clone() == params


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"allowed_token_ids": [3, 8]}, "allowed_token_ids names token 8"),
        ({"bad_words": [[3], [4, 8]]}, "bad_words names token 8"),
        ({"bad_words": ["word"]}, "there is no tokenizer here"),
    ],
)
def test_lists_name_tokens_that_exist(fields: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        make(**fields).check_vocabulary(8)
    make(**fields | {"bad_words": [[3]]}).check_vocabulary(9)
