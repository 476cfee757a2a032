"""The chain of all layers against the operations it is made of."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import struct
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack import (
    OP,
    DecoderStack,
    LayerWeights,
    StackSpec,
    config,
    cuda,
    decoder_stack,
    reference,
)
from fdjax.kernels.matmul import gemm
from fdjax.kernels.paged import KVCache, PageView
from fdjax.kernels.weight import Dense
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

PAGE_SIZE, NUM_PAGES = 16, 200 * 4 + 3


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a small stack of the real kind."""

    name: str
    rows: int
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 1408
    layers: int = 3
    qkv_bias: bool = False
    window: int | None = None
    dtype: str = "bfloat16"
    unified: UnifiedMax | None = None
    width: int = 4  # pages of a row

    @property
    def max_tokens(self) -> int:
        return self.width * PAGE_SIZE


# By how much rounding to 16 bits may move a score, of which most are below 2.
MARGIN = 0.05
SHAPES = [
    Shape("one_row", 1),
    Shape("two_rows", 2),
    Shape("odd_rows", 5, head_dim=128),
    Shape("bias", 8, qkv_bias=True),
    Shape("llama3_heads", 8, heads=32, kv_heads=8, head_dim=128, width=40),
    Shape("window", 17, window=20),
    Shape("heads_of_their_own", 33, kv_heads=8, dtype="float16"),
    Shape("most_rows", 64, hidden=1024),
    Shape("gemm", 65),
    Shape("gemm_bias", 97, qkv_bias=True, window=20),
    Shape("gemm_float16", 100, hidden=576, intermediate=1536, dtype="float16"),
    Shape("gemm_most_rows", 128),
    Shape("library", 129),
    Shape("library_bias", 130, qkv_bias=True, window=20),
    Shape("library_float16", 200, hidden=576, intermediate=1536, dtype="float16"),
    Shape("uneven", 3, hidden=576, intermediate=1536),
    Shape("unified", 5, unified=UnifiedMax(0.5, -20.0, 20.0)),
    Shape("recomputed", 8, unified=UnifiedMax(1.0, -0.8, 0.8)),
]


def _draw(shape: Shape) -> DecoderStack:
    """A call of that shape."""
    random = np.random.default_rng(shape.rows)

    def normal(*size: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(random.normal(size=size) * scale, shape.dtype)

    def weight(n: int, k: int) -> Dense:
        return Dense(normal(n, k, scale=k**-0.5))

    columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    mixed = shape.heads * shape.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=1 + normal(shape.hidden, scale=0.1),
            qkv=weight(columns, shape.hidden),
            qkv_bias=normal(columns) if shape.qkv_bias else None,
            out=weight(shape.hidden, mixed),
            mlp_norm=1 + normal(shape.hidden, scale=0.1),
            up=weight(2 * shape.intermediate, shape.hidden),
            down=weight(shape.hidden, shape.intermediate),
        )
        for _ in range(shape.layers)
    )
    lengths = random.integers(1, shape.max_tokens, shape.rows)
    pages = random.permutation(NUM_PAGES)[: shape.rows * shape.width]
    table = pages.reshape(shape.rows, shape.width)
    held = jnp.asarray(lengths, jnp.int32)
    kv_shape = (NUM_PAGES, shape.layers, 2, PAGE_SIZE, shape.kv_heads, shape.head_dim)
    frequencies = 1e4 ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    spec = StackSpec(
        windows=(shape.window,) * shape.layers,
        scale=shape.head_dim**-0.5,
        soft_cap=None,
        interleaved=False,
        epsilon=1e-5,
        scale_offset=0.0,
        activation="silu",
        unified=shape.unified,
    )
    return DecoderStack(
        normal(shape.rows, shape.hidden),
        KVCache.page_major(normal(*kv_shape)),
        PageView.decoding(jnp.asarray(table, jnp.int32), held),
        jnp.asarray(frequencies, jnp.float32),
        layers,
        spec=spec,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_chain_equals_its_operations(shape: Shape):
    skip_without("decoder_stack", "gpu")
    call = _draw(shape)
    # In float32, so that only the chain rounds to 16 bits between operations.
    wide = jax.tree.map(
        lambda a: a.astype(jnp.float32) if a.dtype == shape.dtype else a, call
    )
    expected_x, expected_kv, _ = jax.jit(reference.decoder_stack)(wide)
    run = jax.jit(OP)
    with OP.using("cuda"):
        x, kv, counts = run(call)
        again, _, _ = run(call)
    assert np.array_equal(np.asarray(x), np.asarray(again))
    # Four roundings of a layer add up.
    assert_close(x, expected_x, reduction=shape.hidden)
    assert_close(kv.array, expected_kv.array, reduction=shape.hidden)
    # A score near a bound may fall on either side of it, no other.
    assert np.all(counts >= _counts(wide, margin=MARGIN))
    assert np.all(counts <= _counts(wide, margin=-MARGIN))


def _counts(call: DecoderStack, *, margin: float) -> np.ndarray:
    """What the definition counts with bounds that are wider by `margin`."""
    unified = call.spec.unified
    if unified is not None:
        unified = UnifiedMax(unified.phi, unified.low - margin, unified.high + margin)
    spec = dataclasses.replace(call.spec, unified=unified)
    stack = jax.jit(reference.decoder_stack)
    return np.asarray(stack(dataclasses.replace(call, spec=spec))[2])


@pytest.mark.parametrize(
    ("unified", "share"), [(UnifiedMax(0.0, 59.0, 60.0), 1), (None, 0)]
)
def test_heads_outside_the_bounds_are_counted(unified: UnifiedMax | None, share: int):
    shape = dataclasses.replace(SHAPES[2], unified=unified)
    with OP.using("reference"):
        _, _, counts = OP(_draw(shape))
    assert counts.tolist() == [[share * shape.heads] * shape.rows] * shape.layers


def test_the_bounds_reach_the_chain(monkeypatch: pytest.MonkeyPatch):
    attributes: dict[str, Any] = {}

    def ffi_call(_: str, declared: Any, **__: Any) -> Any:
        def handler(*_: Any, **given: Any) -> Any:
            attributes.update(given)
            return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), declared)

        return handler

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    monkeypatch.setattr(cuda.ffi, "target", str)
    shape = dataclasses.replace(SHAPES[0], unified=UnifiedMax(1.5, -20.0, 30.0))
    _, _, counts = cuda.run(_draw(shape))
    assert attributes["unified"]
    names = ("phi", "low", "high")
    assert [attributes[name] for name in names] == [1.5, -20.0, 30.0]
    assert counts.tolist() == [[shape.kv_heads]] * shape.layers
    cuda.run(_draw(SHAPES[0]))
    assert not attributes["unified"]


def test_layers_must_match_the_kv_array():
    call = _draw(SHAPES[0])
    with pytest.raises(ValueError, match="2 layers, 3 windows, and a cache of 3"):
        decoder_stack(
            call.x,
            call.kv,
            call.pages,
            call.frequencies,
            call.layers[:2],
            spec=call.spec,
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qkv", r"qkv has \d+ rows; out takes \d+ columns, and \d+ heads of \d+ in kv"),
        ("up", r"up has \d+ rows, gate and up; down takes \d+ columns"),
    ],
)
def test_products_must_match_each_other(name: str, said: str):
    call = _draw(SHAPES[0])
    layer = call.layers[1]
    short = dataclasses.replace(
        layer, **{name: Dense(getattr(layer, name).values[:-16])}
    )
    fields = {f.name: getattr(call, f.name) for f in dataclasses.fields(call)}
    fields["layers"] = (call.layers[0], short, *call.layers[2:])
    with pytest.raises(ValueError, match=said):
        decoder_stack(*(v for k, v in fields.items() if k != "spec"), spec=call.spec)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": 2**16}, "a row is 131072 bytes"),
        ({"windows": (None, 4, None)}, "differ in their sliding windows"),
    ],
)
def test_refusals_say_why(
    change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cuda.ffi, "refuse", lambda *_, **__: None)
    monkeypatch.setattr(cuda.ffi, "refuse_below_sm90", lambda: None)
    shape = SHAPES[0]
    shapes = jax.eval_shape(lambda: _draw(shape))
    windows = change.get("windows", (None,) * shape.layers)
    call = dataclasses.replace(
        shapes,
        x=struct(shape.rows, change.get("hidden", shape.hidden), dtype=shape.dtype),
        spec=dataclasses.replace(shapes.spec, windows=windows),
    )
    said = cuda.refuse(call)
    assert said is not None
    assert reason in said


def test_a_cpu_runs_layers_one_by_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.device.platform", lambda: "cpu")
    assert OP.choice(_draw(SHAPES[0])) == "reference"


def _cuts(rows: int, layer: LayerWeights) -> config.Cuts:
    return config.choose(rows, attention_config.Call(rows, 2, 64), layer)


def test_the_rows_decide_what_multiplies():
    layer = _draw(SHAPES[0]).layers[0]
    one = _cuts(1, layer).products
    assert one == config.GEMV * 4
    more = _cuts(2, layer).products
    assert len(more) == len(one)
    assert all(more[i * 5] > 0 for i in range(4))
    assert not _cuts(64, layer).uses_library
    assert not _cuts(65, layer).uses_library
    assert _cuts(128, layer).products[0] == gemm.TILES
    assert _cuts(129, layer).uses_library


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["two_rows", "odd_rows", "bias", "window", "unified"])
@pytest.mark.parametrize("slots", [3, 66])
def test_attention_in_pieces_gives_the_same(name: str, slots: int):
    skip_without(cuda.NAME, "gpu")
    shape = dataclasses.replace(
        next(shape for shape in SHAPES if shape.name == name), width=40
    )
    call = _draw(shape)
    layer, (rows, _) = call.layers[0], call.x.shape
    attention = attention_config.Call(rows, shape.kv_heads, shape.max_tokens)
    cuts = config.choose(rows, attention, layer)
    other = attention_config.LaunchConfig(2, 1, 8, slots)
    cut = dataclasses.replace(cuts, attention=other)
    expected, kv, counts = jax.jit(functools.partial(cuda.run_cut, cuts=cuts))(call)
    actual, same_kv, same = jax.jit(functools.partial(cuda.run_cut, cuts=cut))(call)
    assert_close(actual, expected, reduction=shape.hidden)
    assert_close(same_kv.array, kv.array, reduction=shape.hidden)
    np.testing.assert_array_equal(np.asarray(same), np.asarray(counts))


@pytest.mark.usefixtures("on_h200")
def test_what_cuts_the_products_is_said():
    layer = _draw(SHAPES[0]).layers[0]
    assert config.source(1, layer) == "GEMMs by gemv, for one row"
    n = layer.qkv.shape[0]
    assert config.source(65, layer) == "GEMMs by gemm, for more than 64 rows"
    assert config.source(129, layer) == "GEMMs by cuBLASLt, for more than 128 rows"
    told = config.source(2, layer)
    assert told.startswith(f"GEMMs by a heuristic: no table of NVIDIA H200 has [{n}")
