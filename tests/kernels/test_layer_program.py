"""A step of every family as one call: the launches, and what they do on a GPU."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import Alibi
from fdjax.kernels import op
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.embedding import OP as EMBEDDING
from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program import config, table
from fdjax.kernels.layer_program.launches import Decode, Launch, Linear, Share
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.matmul.params import (
    FlatConfig,
    GemmConfig,
    GemvConfig,
    LibraryConfig,
    MatmulConfig,
    PersistentConfig,
)
from fdjax.kernels.paged import KVCache
from fdjax.models.families import FAMILIES
from fdjax.models.program import OP, LayerProgram, cuda, gemms
from fdjax.models.program import instructions as do
from fdjax.models.program.run import run_body
from fdjax.models.program.views import refuse_views
from tests.support.handlers import skip_without
from tests.support.launches import Simulation
from tests.support.numerics import assert_close
from tests.support.programs import INTERMEDIATE, call_of, config_of

KINDS = {"decode": 5, "prefill": 0, "mixed": 6, "chunks": 2, "drafts": 0}
GROUPED = {"shared": 7, "beams": 6}
SEPARATE = ("separate", 6)
GROUPING = ("llama", "qwen3", "opt", "gptj", "chatglm")
HEAD_DIMS = (80, 96, 128, 256)
MANY = 130  # rows, more than the kernels of the package multiply


def assert_agree(actual: Any, expected: Any) -> None:
    """Hidden states that are wanted, and all keys and values."""
    assert_close(actual[0], expected[0], reduction=INTERMEDIATE)
    assert_close(actual[1].array, expected[1].array, reduction=INTERMEDIATE)
    assert actual[2].shape == expected[2].shape


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        *((name, *each) for name in FAMILIES for each in KINDS.items()),
        *(("llama", "decode", MANY), ("opt", "mixed", MANY)),
    ],
)
def test_launches_do_what_the_instructions_say(
    name: str, kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
):
    """Regions hold NaN at first; what a kernel writes is apart from what it reads."""
    told = _simulate(monkeypatch)
    monkeypatch.setattr(gemms, "SLICE_ROWS", 64)
    call = call_of(config_of(name), kind, rows)
    actual = cuda.run(call)
    assert_agree(actual, run_body(call))
    slices = {one.slice_rows for one in told if isinstance(one, Linear)}
    assert (64 in slices) == (name == "llama" and rows == MANY)


@pytest.mark.parametrize("efficient", [0, 1])
def test_a_gate_inside_its_gemm_needs_no_room(
    efficient: int, monkeypatch: pytest.MonkeyPatch
):
    told = _simulate(monkeypatch)
    with table.PART.using(ChainRows(persistent_from=1000 * efficient)):
        cuda.run(call_of(config_of("llama"), "decode", MANY))
    gated = [one for one in told if isinstance(one, Linear) and one.gated]
    kernel = PersistentConfig if efficient == 0 else LibraryConfig
    assert {type(one.config) for one in gated} == {kernel}
    assert {one.wide is None for one in gated} == {efficient == 0}


def _reads_once(name: str) -> bool:
    """Positions do not matter to its attention."""
    layers = config_of(name).layers
    return all(
        one.attention.window is None and not isinstance(one.attention.positions, Alibi)
        for one in layers
    )


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("name", [*FAMILIES, "mistral_window"])
def test_what_rows_share_is_read_once(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    told = _simulate(monkeypatch)
    call = call_of(config_of(name), kind, GROUPED[kind])
    if kind == "beams" and not _reads_once(name):
        assert "positions matter" in str(refuse_views(call))
        return
    assert_agree(cuda.run(call), run_body(call))
    shares = [one.layer for one in told if isinstance(one, Share)]
    assert shares == ([0, 1, 2] if _reads_once(name) else [])


@pytest.mark.parametrize("name", [*FAMILIES, "mistral_window"])
def test_beams_read_their_prompts_each(name: str, monkeypatch: pytest.MonkeyPatch):
    """Also where positions matter."""
    told = _simulate(monkeypatch)
    call = call_of(config_of(name), *SEPARATE)
    assert refuse_views(call) is None
    assert_agree(cuda.run(call), run_body(call))
    assert not any(isinstance(one, Share) for one in told)
    decodes = [one for one in told if isinstance(one, Decode)]
    assert [one.layer for one in decodes] == [0, 1, 2]
    assert all(one.rotates for one in decodes)


@pytest.mark.parametrize(
    ("name", "kind", "head_dim"),
    [
        *(("qwen3", "mixed", 80), ("gptj", "decode", 96)),
        *(("gptj", "mixed", 128), ("qwen3", "decode", 256)),
        ("gptj", "decode", 80),  # 20 frequencies: no multiple of eight
    ],
)
def test_launches_of_other_heads_do_the_same(
    name: str, kind: str, head_dim: int, monkeypatch: pytest.MonkeyPatch
):
    """Normalised heads, and those of which RoPE turns a half."""
    _simulate(monkeypatch)
    call = call_of(config_of(name, head_dim=head_dim), kind, KINDS[kind])
    assert_agree(cuda.run(call), run_body(call))


def _simulate(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Calls run on a CPU; their launches, as they come."""
    told: list[Launch] = []

    def simulated(
        launches: tuple[Launch, ...],
        memory: Any,
        tokens: layer_program.Tokens,
        *operands: Any,
        **options: Any,
    ) -> Any:
        told.extend(launches)
        rotates = any(isinstance(one, Decode) and one.rotates for one in launches)
        assert rotates or not tokens.angles.size, "the handler refuses them"
        return Simulation(launches, memory, tokens, *operands, **options).run()

    monkeypatch.setattr(layer_program, "run", simulated)
    return told


CASES = [
    *((name, *each, "bfloat16") for name in FAMILIES for each in KINDS.items()),
    *(("llama", "decode", rows, "bfloat16") for rows in (1, 65, 130)),
    *(("llama", "mixed", rows, "bfloat16") for rows in (1, 65, 130)),
    *(("llama", *each, "float16") for each in KINDS.items()),
    *(("opt", "decode", 1, "float16"), ("gptj", "decode", 65, "float16")),
    *(("qwen3", "decode", 130, "float16"), ("bloom", "mixed", 9, "float16")),
    *((name, *each, "bfloat16") for name in GROUPING for each in GROUPED.items()),
    *(("llama", *each, "float16") for each in GROUPED.items()),
    *(("llama", kind, 66, "bfloat16") for kind in GROUPED),
    *((name, *SEPARATE, "bfloat16") for name in (*FAMILIES, "mistral_window")),
    *(("llama", "separate", 66, "bfloat16"), ("llama", *SEPARATE, "float16")),
    *(("mistral_window", "mixed", 9, "bfloat16"),),
    *(("qwen2_window", "decode", 9, "bfloat16"),),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kind", "rows", "dtype"), CASES)
def test_the_chain_agrees_with_the_definition(
    name: str, kind: str, rows: int, dtype: str, monkeypatch: pytest.MonkeyPatch
):
    skip_without("layer_program", "gpu")
    monkeypatch.setattr(gemms, "SLICE_ROWS", 64)  # several
    call = call_of(config_of(name), kind, rows, dtype=dtype)

    @jax.jit
    def chain(call: LayerProgram) -> Any:
        with OP.using("cuda"):
            return OP(call)

    actual = chain(call)
    assert_agree(actual, _defined(call))
    again = chain(call)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("kind", ["decode", "mixed"])
def test_a_gate_inside_its_gemm_agrees(name: str, kind: str):
    """As in calls whose tiles fill the SMs; these are too small for that."""
    skip_without("layer_program", "gpu")
    call = call_of(config_of(name), kind, MANY, dtype="bfloat16")
    with OP.using("cuda"), table.PART.using(ChainRows(persistent_from=0)):
        actual = jax.jit(OP)(call)
    assert_agree(actual, _defined(call))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "rows"), [*KINDS.items(), *GROUPED.items(), ("decode", MANY)]
)
def test_a_step_in_pages_that_are_lent_has_the_same_bits(kind: str, rows: int):
    """They are full of NaN, and beside them nothing else changes."""
    skip_without("layer_program", "gpu")
    call = call_of(config_of("llama"), kind, rows, dtype="bfloat16")
    array, held = call.kv.array, call.kv.num_pages
    page_bytes = array.nbytes // held
    more = -(-cuda.activation_bytes(call) // page_bytes)
    nothing = jnp.full((more, *array.shape[1:]), jnp.nan, array.dtype)
    arena = replace(call.kv, array=jnp.concatenate([array, nothing]), lent=True)

    @partial(jax.jit, donate_argnums=0)
    def chain(kv: KVCache, call: LayerProgram) -> Any:
        with OP.using("cuda"):
            return OP(replace(call, kv=kv))

    expected = chain(replace(call.kv, array=array + 0), call)
    hidden, kv, recomputed = chain(arena, call)
    np.testing.assert_array_equal(hidden, expected[0])
    np.testing.assert_array_equal(recomputed, expected[2])
    np.testing.assert_array_equal(kv.array[:held], expected[1].array)
    # The borrowed pages were written: else the test would show nothing.
    assert np.isfinite(np.asarray(kv.array[held:], np.float32)).any()


@pytest.mark.gpu
def test_heads_outside_the_bounds_are_counted():
    skip_without("layer_program", "gpu")
    for kind in ("decode", "mixed"):
        bounds = UnifiedMax(0.0, -60.0, 0.01)
        call = call_of(config_of("llama", unified=bounds), kind, 6, dtype="bfloat16")
        with OP.using("cuda"):
            actual = jax.jit(OP)(call)
        heads = 8 * call.num_tokens * call.kv.num_layers
        assert 0 < int(actual[2].sum()) <= heads
        # They are computed again, so the result is that of any maximum.
        assert_agree(actual, _defined(call))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kind", ["decode", "mixed"])
def test_the_chain_agrees_for_other_heads(kind: str, head_dim: int):
    skip_without("layer_program", "gpu")
    config = config_of("qwen3", head_dim=head_dim)
    call = call_of(config, kind, KINDS[kind], dtype="bfloat16")
    with OP.using("cuda"):
        actual = jax.jit(OP)(call)
    assert_agree(actual, _defined(call))


def _defined(call: LayerProgram) -> Any:
    """What the definition computes of it on the CPU, in float32."""
    cpu = jax.devices("cpu")[0]
    wide = jax.device_put(jax.tree.map(_widened, call), cpu)
    # Of the operations of the definition it is the one that takes float32 on a GPU.
    with jax.default_device(cpu), EMBEDDING.using("reference"):
        return jax.tree.map(np.asarray, run_body(wide))


def _widened(leaf: Any) -> Any:
    floats = jnp.issubdtype(leaf.dtype, jnp.floating)
    return leaf.astype(jnp.float32) if floats else leaf


def test_the_bounds_reach_attention(monkeypatch: pytest.MonkeyPatch):
    told = _simulate(monkeypatch)
    for unified in (UnifiedMax(1.5, -20.0, 30.0), None):
        told.clear()
        cuda.run(call_of(config_of("llama", unified=unified), "decode", 2))
        decodes = [one for one in told if isinstance(one, Decode)]
        assert [one.layer for one in decodes] == [0, 1, 2]
        for one in decodes:
            assert one.scheme == UnifiedMax.attributes(unified)
            assert one.scheme.unified == (unified is not None)


def _other_scale(call: LayerProgram) -> LayerProgram:
    """Its last layer scales scores otherwise."""
    *before, last = (
        index
        for index, one in enumerate(call.program.instructions)
        if isinstance(one, do.Attention)
    )
    assert before
    every = list(call.program.instructions)
    every[last] = replace(every[last], scale=2.0)
    return replace(call, program=replace(call.program, instructions=tuple(every)))


def _narrowed(parameters: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda call: call, "q is float32; it takes bfloat16 and float16"),
        (
            lambda call: replace(call, program=replace(call.program, hidden_size=509)),
            "a row is 2036 bytes; add_norm takes multiples of 16 up to",
        ),
        (_other_scale, "layer 2 differs from the first in its scale"),
        (
            lambda call: replace(call, parameters=_narrowed(call.parameters)),
            "the KV array is float32, and the embedding bfloat16",
        ),
        (
            lambda call: replace(
                call,
                parameters=(call.parameters[0], *_narrowed(call.parameters[1:])),
            ),
            "layers.0.attention_norm.scale is bfloat16, and the embedding float32",
        ),
        (
            lambda call: replace(call, batch=replace(call.batch, wanted=jnp.arange(0))),
            "0 of 2 tokens are wanted",
        ),
    ],
    ids=["dtype", "odd", "scale", "kv", "weights", "nothing"],
)
def test_what_it_cannot_serve_is_named(change: Any, reason: str):
    call = change(call_of(config_of("llama"), "decode", 2))
    assert str(cuda.refuse_arguments(call)).startswith(reason)


def test_a_call_whose_bits_must_not_depend_on_the_batch_is_the_definition():
    call = call_of(config_of("llama"), "decode", 2)
    with op.batch_invariant():
        assert OP.choice(call) == "reference"


@pytest.mark.parametrize("gate", [None, "silu"])
def test_the_rows_decide_what_multiplies(gate: str | None):
    def chosen(rows: int) -> MatmulConfig:
        return config.choose(rows, 6144, 4096, gate=gate)

    assert chosen(1) == GemvConfig()
    assert all(isinstance(chosen(rows), FlatConfig) for rows in (2, 64))
    assert all(isinstance(chosen(rows), GemmConfig) for rows in (65, 128))
    assert isinstance(chosen(129), LibraryConfig)


def test_attention_has_room_beside_the_gemm_before_it():
    alone = config.choose(8, 6144, 4096)
    beside = config.choose(8, 6144, 4096, beside_attention=True)
    assert isinstance(alone, FlatConfig) and isinstance(beside, FlatConfig)
    room = ChainRows().beside_bytes
    assert alone.shared_bytes(8) > room >= beside.shared_bytes(8)
    assert replace(beside, stages=alone.stages) == alone
    with table.PART.using(ChainRows(beside_rows=7)):
        assert config.choose(8, 6144, 4096, beside_attention=True) == alone
    with table.PART.using(ChainRows(beside_bytes=0)):
        least = config.choose(8, 6144, 4096, beside_attention=True)
    assert least == replace(alone, stages=1)


@pytest.mark.usefixtures("on_h200")
def test_what_chose_the_kernels_of_gemms_is_said():
    shapes = ((208, 104), (304, 104))
    assert config.source(1, shapes) == "GEMMs by gemv, for one row"
    assert config.source(65, shapes) == "GEMMs by gemm, for more than 64 rows"
    assert config.source(129, shapes).startswith("GEMMs by cuBLASLt, for more than 128")
    told = config.source(2, shapes)
    assert told.startswith("GEMMs by a heuristic: no table of NVIDIA H200 has [208")
