"""The strict reader: what it accepts, and what its refusals say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.errors import ConfigError
from fdjax.models.hf_config import HfConfig

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


def test_reads_each_kind():
    fields = HfConfig({"i": 3, "f": 0.5, "whole": 2, "b": False, "s": "x"})
    assert fields.take("i", int) == 3
    assert fields.take("f", float) == 0.5
    whole = fields.take("whole", float)
    assert whole == 2.0 and isinstance(whole, float)
    assert fields.take("b", bool, True) is False
    assert fields.take("s", str) == "x"
    fields.finish()


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        ("4096", int, "expected an integer, not str"),
        (4096.0, int, "expected an integer, not float"),
        (True, int, "expected an integer, not bool"),
        (None, int, "expected an integer, not null"),
        (True, float, "expected a number, not bool"),
        (1, bool, "expected true or false, not int"),
        (-4, int, "must be from 1 to"),
        (0, int, "must be from 1 to"),
        (2**31, int, "must be from 1 to 2147483647"),
        (-1e-5, float, "must be positive and finite"),
        (0, float, "must be positive and finite"),
        (float("nan"), float, "must be positive and finite"),
        (float("inf"), float, "must be positive and finite"),
        (10**400, float, "expected a number"),
    ],
)
def test_refuses_a_value_and_names_it(value: object, kind: type[int], problem: str):
    with pytest.raises(ConfigError, match=r"config\.json: size = ") as caught:
        HfConfig({"size": value}).take("size", kind)
    assert problem in str(caught.value)


def test_a_missing_field_is_named():
    with pytest.raises(ConfigError, match="hidden_size: is missing; expected an int"):
        HfConfig({}).take("hidden_size", int)


def test_null_is_absent_only_where_it_means_something():
    fields = HfConfig({"window": None})
    assert fields.take_optional("window", int, 4096) is None
    assert fields.take_optional("other", int, 4096) == 4096
    with pytest.raises(ConfigError, match="window = None"):
        fields.take("window", int, 4096)


def test_aliases():
    assert HfConfig({"n_embd": 8}).take("hidden_size", int, aliases=("n_embd",)) == 8
    both: dict[str, Any] = {"hidden_size": 8, "n_embd": 9}
    with pytest.raises(ConfigError, match="n_embd = 9: contradicts hidden_size = 8"):
        HfConfig(both).take("hidden_size", int, aliases=("n_embd",))
    for other in (8, None):
        fields = HfConfig(both | {"n_embd": other})
        assert fields.take("hidden_size", int, aliases=("n_embd",)) == 8
        fields.finish()


def test_require():
    fields = HfConfig({"flag": False, "ratio": 1.0})
    fields.require("flag", (False, None), because="it is off")
    fields.require("ratio", (1,), because="it is one")
    fields.require("absent", (True,), because="that is its meaning")
    with pytest.raises(ConfigError, match="flag = False: only true is supported"):
        fields.require("flag", (True,), because="it is on")
    with pytest.raises(ConfigError, match="only 0 or null is supported, because"):
        fields.require("flag", (0, None), because="false is no number")


def test_fraction():
    fields = HfConfig({"half": 0.5, "whole": 1, "null": None})
    assert fields.fraction("half") == 0.5
    whole = fields.fraction("whole")
    assert whole == 1.0 and isinstance(whole, float)
    assert fields.fraction("null") is None
    assert fields.fraction("absent") is None
    for wrong in (0, -0.5, 1.5, 1e308, 10**400, float("nan"), True, "0.5", [0.5]):
        with pytest.raises(ConfigError, match=r"part = .*: must be above 0 and at mos"):
            HfConfig({"part": wrong}).fraction("part")


def test_token_ids():
    fields = HfConfig({"one": 0, "list": [3, 4], "null": None})
    assert fields.token_ids("one") == (0,)
    assert fields.token_ids("list") == (3, 4)
    assert fields.token_ids("null") is None
    assert fields.token_ids("absent") is None
    for wrong in (-1, True, "2", [1, None], 1.0):
        with pytest.raises(ConfigError, match="eos_token_id"):
            HfConfig({"eos_token_id": wrong}).token_ids("eos_token_id")


def test_finish_names_every_unknown_field_and_the_remedy():
    fields = HfConfig({"known": 1, "residual_scale": 0.5, "experts": 8})
    fields.take("known", int)
    with pytest.raises(ConfigError) as caught:
        fields.finish()
    message = str(caught.value)
    assert "residual_scale = 0.5, experts = 8" in message
    assert 'hf_overrides={"residual_scale": None, "experts": None}' in message


def test_finish_inside_an_object_names_the_path():
    child = HfConfig({"rope": {"beta": 2}}).child("rope")
    assert child is not None
    with pytest.raises(ConfigError, match=r"rope\.beta = 2") as caught:
        child.finish()
    assert 'hf_overrides={"rope": {"beta": None}}' in str(caught.value)


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_finish_passes_empty_fields(value: object):
    HfConfig({"anything": value}).finish()


def test_finish_passes_inert_fields_but_not_zero():
    HfConfig(
        {
            "attention_dropout": 0.1,
            "resid_pdrop": 0.1,
            "torchscript": True,
            "pad_token_id": 0,
            "temperature": 0.7,
            "id2label": {"0": "a"},
            "_name_or_path": "x",
            "pretraining_tp": 4,
            "auto_map": {"AutoModel": "code.Model"},
        }
    ).finish()
    for name in ("unknown", "_unknown", "dropout_scale_of_attention"):
        with pytest.raises(ConfigError, match=name):
            HfConfig({name: 0}).finish()


@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_quantised_weights_are_refused(name: str):
    with pytest.raises(ConfigError, match=f"{name} = .*quantised"):
        HfConfig({name: {"bits": 4}})
    HfConfig({name: None})


@given(value=JSON, kind=st.sampled_from([int, float, bool, str]))
def test_any_value_is_read_under_its_type_or_refused(value: object, kind: type[int]):
    try:
        read = HfConfig({"x": value}).take("x", kind)
    except ConfigError as error:
        assert "config.json: x = " in str(error)
    else:
        assert type(read) is kind
