"""A model's configuration has no field, kind or value that nobody consumes."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, get_args

import pytest

from fdjax.config import Attention, LayerSpec, RmsNorm, Rope
from fdjax.config.accepted import Each, Values, Wanted
from fdjax.errors import ConfigError
from fdjax.kernels.activations import ACTIVATIONS
from fdjax.models import Decoder, ModelConfig
from fdjax.models.accepted import BY_OTHERS, BY_PROGRAM, PARTS
from fdjax.models.checkpoint import read_config
from fdjax.pytree import of_shapes
from tests.support.engines import FIXTURES

CONFIG = ModelConfig.from_hf(read_config(FIXTURES / "llama"))
LAYER = CONFIG.layers[0]


@dataclass(frozen=True)
class Loose(ModelConfig):
    """A model whose fields no type checker looks at: it is not told of this class."""


def loose(**changes: Any) -> ModelConfig:
    return Loose(**{**vars(CONFIG), **changes})


def changed[T](part: T, **changes: Any) -> T:
    """The part with values that a type checker at run time would refuse."""
    return of_shapes(type(part), **{**vars(part), **changes})


@pytest.mark.parametrize("part", PARTS)
def test_each_field_of_a_part_is_named(part: type):
    assert {field.name for field in fields(part)} == set(PARTS[part])


def test_each_field_of_a_configuration_is_consumed_by_programs_or_by_others():
    assert not BY_PROGRAM.keys() & BY_OTHERS.keys()
    names = {field.name for field in fields(ModelConfig)}
    assert names == BY_PROGRAM.keys() | BY_OTHERS.keys()


def classes_of(wanted: Wanted) -> Iterator[type]:
    match wanted:
        case Each(element):
            yield from classes_of(element)
        case Values(kind):
            yield from classes_of(kind)
        case UnionType():
            yield from get_args(wanted)
        case _:
            yield wanted


def test_each_kind_of_a_part_has_its_fields_named():
    wanted = (one for part in (*PARTS.values(), BY_PROGRAM) for one in part.values())
    parts = {each for one in wanted for each in classes_of(one)}
    assert {each for each in parts if dataclasses.is_dataclass(each)} <= PARTS.keys()
    assert LayerSpec in parts


def test_each_activation_that_may_be_declared_is_there():
    for name in ACTIVATIONS:
        mlp = replace(LAYER.mlp, activation=name)
        replace(CONFIG, layers=(replace(LAYER, mlp=mlp),))


@dataclass(frozen=True)
class Scaling(ModelConfig):
    """A model with a factor that no instruction has heard of."""

    residual_scale: float | None = None


@dataclass(frozen=True)
class Sinking(Attention):
    """Attention with a field that no instruction has heard of."""

    sinks: int | None = None


def test_a_field_that_nobody_consumes_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"consumes residual_scale = 0\.22; give it"):
        Scaling(**vars(CONFIG), residual_scale=0.22)
    Decoder(Scaling(**vars(CONFIG)), "float32")
    known = vars(LAYER.attention)
    layer = replace(LAYER, attention=Sinking(**known, sinks=4))
    with pytest.raises(ConfigError, match=r"consumes layers\.1\.attention\.sinks = 4;"):
        replace(CONFIG, layers=(LAYER, layer))
    layer = replace(LAYER, attention=Sinking(**known))
    assert replace(CONFIG, layers=(LAYER, layer)).num_layers == 2


@dataclass(frozen=True)
class PowerNorm:
    """A norm of another kind."""

    epsilon: float


@dataclass(frozen=True)
class Experts:
    """A mixture of experts."""

    size: int
    count: int


@dataclass(frozen=True)
class Recurrent:
    """A layer without attention."""

    state: int


NEW_NORM = PowerNorm(1e-5)
NEW: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"final_norm": NEW_NORM},
        "final_norm is of the class PowerNorm; expected RmsNorm or LayerNorm",
    ),
    (
        {"layers": (LAYER, Recurrent(4))},
        "layers.1 is of the class Recurrent; expected LayerSpec",
    ),
    (
        {"layers": (changed(LAYER, mlp=Experts(8, 4)),)},
        "layers.0.mlp is of the class Experts; expected Mlp or GatedMlp",
    ),
    (
        {"layers": (changed(LAYER, mlp_norm=NEW_NORM),)},
        "layers.0.mlp_norm is of the class PowerNorm; expected RmsNorm, LayerNorm or "
        "None",
    ),
)


@pytest.mark.parametrize(("changes", "told"), NEW)
def test_a_new_kind_is_refused_with_those_that_are_known(
    changes: dict[str, Any], told: str
):
    with pytest.raises(ConfigError) as caught:
        loose(**changes)
    assert str(caught.value) == told


ATTENTION: tuple[tuple[dict[str, Any], str], ...] = (
    ({"window": -1}, "window = -1; expected an int from 1, or None"),
    ({"window": 0}, "window = 0; expected an int from 1, or None"),
    ({"soft_cap": 0.0}, "soft_cap = 0.0; expected a positive, finite float, or None"),
    ({"soft_cap": 50}, "soft_cap = 50 is of the class int; expected a positive"),
    ({"scale": 1}, "scale = 1 is of the class int; expected a positive, finite float"),
    ({"scale": float("nan")}, "scale = nan; expected a positive, finite float"),
    ({"positions": Rope(1e4, 5)}, "positions rotates 5 dimensions of a head of "),
    ({"positions": Rope(1e4, 256)}, "positions rotates 256 dimensions of a head of "),
    ({"positions": Rope(0.0, 8)}, "positions.theta = 0.0; expected a positive"),
    ({"qk_norm": RmsNorm(-1.0)}, "qk_norm.epsilon = -1.0; expected a positive"),
)


@pytest.mark.parametrize(("changes", "told"), ATTENTION, ids=str)
def test_values_that_make_no_sense_name_the_layer(changes: dict[str, Any], told: str):
    layer = changed(LAYER, attention=changed(LAYER.attention, **changes))
    with pytest.raises(ConfigError) as caught:
        loose(layers=(LAYER, LAYER, layer, layer))
    assert str(caught.value).startswith(f"layers.2.attention.{told}")


def test_an_int_is_seen_beside_a_float_that_equals_it():
    parts = [changed(LAYER.attention, soft_cap=cap) for cap in (50.0, 50)]
    layers = tuple(changed(LAYER, attention=part) for part in parts)
    assert layers[0] == layers[1]
    with pytest.raises(ConfigError, match=r"layers\.1\.attention\.soft_cap = 50 is"):
        loose(layers=layers)


def test_key_heads_divide_query_heads():
    attention = replace(LAYER.attention, num_heads=32, num_kv_heads=5)
    told = r"layers\.0\.attention\.num_kv_heads = 5 does not divide num_heads = 32"
    with pytest.raises(ConfigError, match=told):
        replace(CONFIG, layers=(replace(LAYER, attention=attention),))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": 0}, "hidden_size = 0; expected an int from 1"),
        ({"max_position": -1}, "max_position = -1; expected an int from 1"),
        ({"bos_token_id": -1}, "bos_token_id = -1; expected an int from 0, or None"),
        ({"eos_token_ids": (2, -1)}, "eos_token_ids.1 = -1; expected an int from 0"),
        ({"eos_token_ids": [2]}, "eos_token_ids = [2] is of the class list; expected"),
        ({"dtype": "int8"}, "dtype = 'int8'; expected float16, bfloat16 or float32"),
    ],
    ids=str,
)
def test_values_of_the_whole_model(changes: dict[str, Any], told: str):
    with pytest.raises(ConfigError) as caught:
        loose(**changes)
    assert str(caught.value).startswith(told)


def test_an_activation_is_one_of_those_there_are():
    layer = changed(LAYER, mlp=changed(LAYER.mlp, activation="swish"))
    told = (
        r"layers\.0\.mlp\.activation = 'swish'; expected silu, gelu, gelu_tanh or relu"
    )
    with pytest.raises(ConfigError, match=told):
        loose(layers=(layer,))
