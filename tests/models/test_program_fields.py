"""No field of a configuration is taken in silence: each changes what a GPU is told.

Fields are those that `models.accepted` names, and what they may be stands there: one
that is new there is tried without a change here, but for a part of a new class.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import pytest

from fdjax.config import (
    Alibi,
    Attention,
    Embedding,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    RmsNorm,
    Rope,
)
from fdjax.config.accepted import Each, Values, Wanted
from fdjax.errors import ConfigError, Unsupported
from fdjax.kernels.activations import ACTIVATIONS
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache
from fdjax.layers import decode_batch, packed_batch
from fdjax.models import Decoder, ModelConfig
from fdjax.models.accepted import BY_PROGRAM, PARTS
from fdjax.models.program import OP
from fdjax.notation import Array
from tests.support import h200

RMS, LAYER = RmsNorm(1e-5, 0.25), LayerNorm(1e-5)
UNIFIED = UnifiedMax(1.0, -40.0, 40.0)
ROPE = Rope(1e4, 64, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192))
# One of each class of parts, for where there is another or none.
SAMPLES: dict[type, Any] = {
    RmsNorm: RMS,
    LayerNorm: LAYER,
    Rope: ROPE,
    Alibi: Alibi(),
    LinearScaling: LinearScaling(4.0),
    Llama3Scaling: ROPE.scaling,
    Mlp: Mlp(704, "relu"),
    GatedMlp: GatedMlp(704, "silu"),
    Learned: Learned(128, 2),
    UnifiedMax: UNIFIED,
}


def config_of(layer: LayerSpec, embedding: Embedding, **others: Any) -> ModelConfig:
    return ModelConfig(
        "made-up", 512, (layer,) * 2, 128, embedding, dtype="bfloat16", **others
    )


FULL = LayerSpec(
    Attention(8, 2, 128, 0.125, ROPE, window=20, qk_norm=RMS, soft_cap=50.0),
    GatedMlp(704, "silu"),
    attention_norm=RMS,
    mlp_norm=RMS,
    attention_post_norm=RMS,
    mlp_post_norm=RMS,
)
LINEAR = Rope(1e4, 32, interleaved=True, scaling=LinearScaling(4.0))
PARALLEL = LayerSpec(
    Attention(8, 4, 128, 0.125, LINEAR, qkv_bias=True, out_bias=True, qk_norm=LAYER),
    Mlp(704, "gelu", bias=True),
    attention_norm=LAYER,
    mlp_norm=None,
)
# Between them they have a part of every class.
BASES = {
    "full": config_of(
        FULL,
        Embedding(1024, True, 2.0, Learned(128, 2), RMS, soft_cap=30.0),
        final_norm=RMS,
        unified=UNIFIED,
    ),
    "plain": config_of(PARALLEL, Embedding(1024, False), final_norm=LAYER),
    "alibi": config_of(
        dataclasses.replace(
            FULL, attention=Attention(8, 4, 128, 0.125, Alibi()), mlp_post_norm=LAYER
        ),
        Embedding(1024, False, norm=LAYER, head_bias=True),
        final_norm=LAYER,
    ),
}


class Change(NamedTuple):
    """Another value of one field.

    Attributes:
        base: name of the configuration that has it.
        path: names of fields, from the whole or, of layers, from one of them.
        of_layer: whether it is a layer's.
        owner: the class whose field it is.
        value: the other one.
    """

    base: str
    path: tuple[str, ...]
    of_layer: bool
    owner: type
    value: Any

    @property
    def name(self) -> str:
        layer = ("layers",) if self.of_layer else ()
        return f"{self.base}-{'.'.join((*layer, *self.path))}={self.value}"

    def of(self, layers: slice) -> ModelConfig:
        """The configuration where these layers, or the whole, have it."""
        config = BASES[self.base]
        if not self.of_layer:
            return replaced(config, self.path, self.value)
        every = [*config.layers]
        every[layers] = [replaced(one, self.path, self.value) for one in every[layers]]
        return dataclasses.replace(config, layers=tuple(every))


ALL, LAST = slice(None), slice(-1, None)


def replaced(part: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    if rest:
        value = replaced(getattr(part, name), tuple(rest), value)
    return dataclasses.replace(part, **{name: value})


def kinds_of(wanted: Wanted) -> tuple[type, ...]:
    kind = wanted.kind if isinstance(wanted, Values) else wanted
    if isinstance(kind, UnionType):
        return get_args(kind)
    return () if isinstance(kind, Each) else (kind,)


def others(value: Any, wanted: Wanted) -> Iterator[Any]:
    """Other values that a field may have: of a number one, of kinds each."""
    for kind in kinds_of(wanted):
        if kind is bool:
            yield not value
        elif kind is str:
            yield from (name for name in ACTIVATIONS if name != value)
        elif kind in (int, float) and type(value) in (kind, NoneType):
            yield _other_number(kind, value)
        elif kind is NoneType and value is not None:
            yield None
        elif kind in SAMPLES and not isinstance(value, kind):
            yield SAMPLES[kind]


def _other_number(kind: type, value: Any) -> Any:
    if not value:
        return kind(7)
    return value // 2 if kind is int else value * 1.5


def changes_of(
    base: str, part: Any, path: tuple[str, ...] = (), *, of_layer: bool = False
) -> Iterator[Change]:
    """Of all fields of a part, and of those within it."""
    owner = type(part)
    for name, wanted in (BY_PROGRAM if owner is ModelConfig else PARTS[owner]).items():
        value, here = getattr(part, name), (*path, name)
        if isinstance(wanted, Each):
            yield from changes_of(base, value[0], of_layer=True)
            continue
        for other in others(value, wanted):
            yield Change(base, here, of_layer, owner, other)
        if type(value) in PARTS:
            yield from changes_of(base, value, here, of_layer=of_layer)


CHANGES = [one for base, config in BASES.items() for one in changes_of(base, config)]
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.name)


def test_every_field_that_is_accepted_is_changed():
    accepted = {**PARTS, ModelConfig: BY_PROGRAM}
    known = {
        (owner, name)
        for owner, fields in accepted.items()
        for name, wanted in fields.items()
        # Of parts that come in one class what is within is changed.
        if wanted not in PARTS and not isinstance(wanted, Each)
    }
    tried = {(change.owner, change.path[-1]) for change in CHANGES}
    assert known == tried


@pytest.fixture(autouse=True)
def _on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    h200.pretend(monkeypatch, tmp_path)


def told(config: ModelConfig, kind: str) -> str:
    """What a GPU is told of a step: its program, with all attributes and shapes.

    Raises:
        Unsupported: the kernels of all layers do not serve it.
    """
    leaves, structure = jax.tree.flatten(Decoder(config, jnp.bfloat16))
    layout = config.kv_layout(num_pages=8, page_size=16, dtype=jnp.bfloat16)
    kv: Any = jax.ShapeDtypeStruct(layout.shape, jnp.bfloat16)
    rows = 2
    tokens = rows if kind == "decoding" else 40

    def step(leaves: Any, kv: KVCache, ids: Array, lengths: Array, table: Array) -> Any:
        if kind == "decoding":
            batch = decode_batch(ids, lengths, table, page_size=16)
        else:
            batch = packed_batch(ids, lengths, table, lengths - 20, page_size=16)
            wanted = batch.pages.last_tokens(tokens)
            batch = dataclasses.replace(batch, wanted=wanted)
        model = jax.tree.unflatten(structure, leaves)
        hidden, kv, recomputed = model(kv, batch)
        return model.logits(hidden), kv, recomputed

    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((tokens,), (rows,))]
    table = jax.ShapeDtypeStruct((rows, 4), jnp.int32)
    with OP.using("cuda"):
        cache = KVCache.page_major(kv)
        return jax.jit(step).lower(leaves, cache, *shapes, table).as_text()


@functools.cache
def told_before(base: str, kind: str) -> str:
    return told(BASES[base], kind)


@pytest.mark.parametrize("base", BASES)
def test_what_is_the_same_is_told_the_same(base: str):
    again = dataclasses.replace(BASES[base])
    assert told(again, "decoding") == told_before(base, "decoding")


@pytest.mark.parametrize("kind", ["decoding", "prompts"])
@every_change
def test_a_field_changes_the_program_of_a_gpu(change: Change, kind: str):
    assert told(change.of(ALL), kind) != told_before(change.base, kind)


@pytest.mark.parametrize(
    "change",
    [one for one in CHANGES if one.of_layer and one.base == "full"],
    ids=lambda one: one.name,
)
def test_a_field_of_one_layer_changes_the_program_or_is_refused(change: Change):
    try:
        told_now = told(change.of(LAST), "decoding")
    except (ConfigError, Unsupported) as refused:
        assert re.search(r"layer 1 .*layer 0|layer 1 differs .*in its ", str(refused))
    else:
        assert told_now != told_before(change.base, "decoding")
