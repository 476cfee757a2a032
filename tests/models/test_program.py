"""Programs of all families against the modules that define them."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import RmsNorm
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache
from fdjax.layers import Batch, beam_batch, decode_batch, packed_batch
from fdjax.models import Decoder, ModelConfig, load, random_weights
from fdjax.models.checkpoint import read_config
from fdjax.models.families import FAMILIES
from fdjax.models.parameters import parameters_of
from fdjax.models.program import Program, program_of, run, run_program
from fdjax.models.program import instructions as do
from fdjax.models.program.buffers import assign
from fdjax.models.weights import parameter_shapes
from fdjax.notation import Array
from tests.support.engines import FIXTURES
from tests.support.numerics import assert_close

NUM_PAGES, PAGE_SIZE = 8, 4
TABLE = jnp.asarray([[2, 0, 8], [1, 3, 7], [6, 8, 8]], jnp.int32)
# Small ones of every family, and those with more: windows, biases, tied heads, scaling.
NAMES = (
    *(name for name in FAMILIES),
    *("llama_bias", "llama_tied", "mistral_window", "gemma2_uncapped", "opt_untied"),
    *("gptj_published", "bloom_published", "chatglm_rope_ratio", "qwen2_window"),
)


@functools.cache
def model_of(name: str, dtype: Any = jnp.float32) -> Decoder:
    return load(FIXTURES / name, dtype=dtype)


def ints(*values: int) -> Array:
    return jnp.asarray(values, jnp.int32)


def noise(model: Decoder) -> KVCache:
    layout = model.config.kv_layout(
        num_pages=NUM_PAGES,
        page_size=PAGE_SIZE,
        dtype=model.embed.weight.get_value().dtype,
    )
    values = np.random.default_rng(0).normal(size=layout.shape)
    return KVCache.page_major(jnp.asarray(values, layout.dtype))


def decoding() -> Batch:
    """Three rows with a token each."""
    return decode_batch(ints(5, 9, 1), ints(6, 10, 0), TABLE, page_size=PAGE_SIZE)


def mixed() -> Batch:
    """A row that decodes, a chunk in the middle of a prompt, a prompt, and padding."""
    tokens = ints(5, *range(1, 6), 4, 2, 7, 0, 0)
    lengths, starts = ints(7, 9, 3), ints(6, 4, 0)
    batch = packed_batch(tokens, lengths, TABLE, starts, page_size=PAGE_SIZE)
    return replace(batch, wanted=batch.pages.last_tokens(tokens.size))


def verifying() -> Batch:
    """Rows of 4, 2 and 2 drafted tokens, all of them wanted, and padding."""
    tokens = ints(5, 9, 1, 3, 4, 2, 7, 8, 0, 0)
    lengths, starts = ints(7, 9, 4), ints(3, 7, 2)
    batch = packed_batch(tokens, lengths, TABLE, starts, page_size=PAGE_SIZE)
    return replace(batch, wanted=ints(*range(8)))


BATCHES = {"decoding": decoding, "mixed": mixed, "verifying": verifying}
each_batch = pytest.mark.parametrize("kind", BATCHES)


def by_modules(model: Decoder, batch: Batch) -> tuple[Array, KVCache, Array]:
    hidden, kv, recomputed = model(noise(model), batch)
    return model.logits(hidden), kv, recomputed


def by_program(model: Decoder, batch: Batch) -> tuple[Array, KVCache, Array]:
    program = program_of(model.config, selects=batch.wanted is not None)
    return run_program(program, parameters_of(model), noise(model), batch)


def assert_same_bits(model: Decoder, batch: Batch) -> None:
    expected, actual = by_modules(model, batch), by_program(model, batch)
    for one, other in zip(
        jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), strict=True)


@each_batch
@pytest.mark.parametrize("name", NAMES)
def test_a_program_has_the_bits_of_the_modules(name: str, kind: str):
    assert_same_bits(model_of(name), BATCHES[kind]())


def changed(**changes: Any) -> Decoder:
    """A Llama whose layers have what no family has together; weights made up."""
    config = ModelConfig.from_hf(read_config(FIXTURES / "llama"))
    layers = tuple(replace(layer, **changes) for layer in config.layers)
    config = replace(config, layers=layers, unified=UnifiedMax(0.0, -60.0, 0.01))
    return random_weights(config, dtype=jnp.float32, seed=1)


NORM = RmsNorm(1e-5)


@each_batch
@pytest.mark.parametrize(
    "changes",
    [
        {"mlp_norm": None, "attention_post_norm": NORM, "mlp_post_norm": NORM},
        {"mlp_norm": None, "attention_post_norm": NORM},
        {"attention_post_norm": NORM},
        {"mlp_post_norm": NORM},
    ],
    ids="-".join,
)
def test_parts_may_be_combined_as_no_family_does(changes: dict[str, Any], kind: str):
    assert_same_bits(changed(**changes), BATCHES[kind]())


def test_heads_outside_the_bounds_are_counted():
    model = changed()
    _, _, recomputed = by_program(model, decoding())
    assert 0 < int(recomputed.sum()) < recomputed.size * model.config.num_heads


def test_a_jitted_program_updates_the_kv_array_in_place():
    model, batch = model_of("gemma2"), mixed()
    program, parameters = program_of(model.config, selects=True), parameters_of(model)
    kv = noise(model)
    step = jax.jit(functools.partial(run_program, program), donate_argnums=1)
    memory = step.lower(parameters, kv, batch).compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= kv.array.nbytes
    expected, _, _ = by_modules(model, batch)
    logits, _, _ = step(parameters, kv, batch)
    assert_close(logits, expected, reduction=model.config.hidden_size)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_in_16_bits_it_rounds_no_more_than_the_modules(name: str):
    """A linear map that adds to the stream rounds once; the modules round twice."""
    exact, _, _ = by_modules(model_of(name), decoding())
    model = model_of(name, jnp.bfloat16)
    errors = [
        float(jnp.abs(run(model, decoding())[0] - exact).mean())
        for run in (by_program, by_modules)
    ]
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("selects", [False, True])
def test_a_program_reads_every_parameter(name: str, selects: bool):
    config = ModelConfig.from_hf(read_config(FIXTURES / name))
    program = program_of(config, selects=selects)
    expected = parameter_shapes(config, dtype=jnp.float32)
    assert sorted(program.parameters) == sorted(expected)
    hash(program)  # it is static: jit's cache knows it


@pytest.mark.parametrize("name", FAMILIES)
def test_values_are_written_once_and_read_after_that(name: str):
    program = program_of(
        ModelConfig.from_hf(read_config(FIXTURES / name)), selects=True
    )
    written: list[do.Value] = []
    for instruction in program.instructions:
        assert set(instruction.reads) <= set(written)
        assert set(instruction.overwrites) <= set(instruction.reads)
        written += instruction.writes
    assert tuple(written) == program.values


class InBuffers(dict[int, Array]):
    """Values that lie in three arrays where the assignment puts them.

    A value of `R` rows at column `c` lies `S * c` elements from the beginning, row
    after row, where `S` is the most rows that the buffers are made for.
    """

    def __init__(self, program: Program, num_rows: int) -> None:
        super().__init__()
        self._values, self._buffers = program.values, assign(program)
        self._num_rows = num_rows
        self._arrays = [
            np.full(num_rows * width, np.nan, np.float32)
            for width in self._buffers.widths
        ]
        self._shapes: dict[int, tuple[int, ...]] = {}

    def __setitem__(self, index: int, value: Array) -> None:
        self._shapes[index] = value.shape
        self._place(index)[:] = np.asarray(value).ravel()

    def __getitem__(self, index: int) -> Array:
        # A copy: the array may not see what is written there later.
        return jnp.array(self._place(index).reshape(self._shapes[index]))

    def _place(self, index: int) -> np.ndarray:
        place, (rows, columns) = self._buffers.places[index], self._shapes[index]
        assert rows <= self._num_rows
        first = self._num_rows * place.first
        return self._arrays[place.buffer - 1][first : first + rows * columns]


@each_batch
@pytest.mark.parametrize("name", ["llama", "gptj", "gemma2", "bloom", "qwen3"])
def test_values_may_lie_where_the_assignment_puts_them(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    model, batch = model_of(name), BATCHES[kind]()
    expected, _, _ = by_program(model, batch)
    program = program_of(model.config, selects=batch.wanted is not None)
    real = run._Step

    def in_buffers(*operands: Any) -> run._Step:
        step = real(*operands)
        step._values = InBuffers(program, batch.tokens.size)
        return step

    monkeypatch.setattr(run, "_Step", in_buffers)
    actual, _, _ = by_program(model, batch)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def test_beams_run_through_a_program():
    model = model_of("llama")
    prompts = jnp.asarray([[4, 5]], jnp.int32)
    beams = BeamView(prompts, ints(6), jnp.asarray([[0] * 4, [0, 1, 1, 1]], jnp.int32))
    batch = beam_batch(ints(3, 4), ints(2, 2), TABLE[:2], beams, page_size=PAGE_SIZE)
    assert_same_bits(model, batch)
