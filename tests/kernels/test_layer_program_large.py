"""Activations of more than 2^31 elements, of which some rows are looked at."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import LayerSpec, Rope
from fdjax.kernels.layer_program import table
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.paged import KVCache
from fdjax.layers import packed_batch
from fdjax.models import ModelConfig, random_weights
from fdjax.models.checkpoint import read_config
from fdjax.models.parameters import parameters_of
from fdjax.models.program import OP, LayerProgram, cuda, program_of
from tests.support.engines import FIXTURES
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close
from tests.support.programs import defined

PAGE_SIZE = 16


@dataclass(frozen=True)
class Sizes:
    """Of a model of two layers, and of prompts that are alike long."""

    hidden: int
    mlp: int
    num_rows: int
    length: int
    dtype: Any

    @property
    def pages_of_row(self) -> int:
        return self.length // PAGE_SIZE

    @property
    def config(self) -> ModelConfig:
        """A Llama's, with few heads: attention takes the least of the time."""
        small = ModelConfig.from_hf(read_config(FIXTURES / "llama"))
        layer = self._layer(small.layers[0])
        return replace(small, hidden_size=self.hidden, layers=(layer, layer))

    def _layer(self, spec: LayerSpec) -> LayerSpec:
        positions = spec.attention.positions
        assert isinstance(positions, Rope)
        attention = replace(
            spec.attention,
            num_heads=4,
            num_kv_heads=1,
            head_dim=128,
            scale=128**-0.5,
            positions=replace(positions, rotary_dim=128),
        )
        mlp = replace(spec.mlp, size=self.mlp)
        return replace(spec, attention=attention, mlp=mlp)

    def call(self, held: Any, rows: np.ndarray, wanted: Any = None) -> LayerProgram:
        """The prompts of some rows, one behind the other.

        Args:
            held: parameters, by their paths.
            rows: which ones.
            wanted: places of tokens; `None`: all are wanted.
        """
        config, count = self.config, len(rows)
        random = np.random.default_rng(0)
        tokens = random.integers(0, 100, (self.num_rows, self.length))[rows]
        layout = config.kv_layout(
            num_pages=count * self.pages_of_row, page_size=PAGE_SIZE, dtype=self.dtype
        )
        kv = KVCache.page_major(jnp.zeros(layout.shape, layout.dtype))
        table = jnp.arange(layout.num_pages, dtype=jnp.int32).reshape(count, -1)
        batch = packed_batch(
            jnp.asarray(tokens.reshape(-1), jnp.int32),
            jnp.full(count, self.length, jnp.int32),
            table,
            jnp.zeros(count, jnp.int32),
            page_size=PAGE_SIZE,
        )
        program = program_of(config, selects=wanted is not None)
        if wanted is not None:
            batch = replace(batch, wanted=jnp.asarray(wanted, jnp.int32))
        parameters = tuple(held[path] for path in program.body_parameters)
        return LayerProgram(kv, batch, parameters, program)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Of the tokens of some rows, where all rows are there."""
        return (rows[:, None] * self.length + np.arange(self.length)).reshape(-1)


SMALL = Sizes(hidden=512, mlp=704, num_rows=7, length=32, dtype=jnp.float32)
# Hidden states have 2.18e9 elements, and what is between gate and down twice as many.
LARGE = Sizes(hidden=4096, mlp=8192, num_rows=1040, length=512, dtype=jnp.bfloat16)
# The first, the last, and those on both sides of element 2^31 of each of the two.
SAMPLE = (0, 511, 512, 1023, 1024, 1039)


def _held(sizes: Sizes) -> Any:
    return parameters_of(random_weights(sizes.config, dtype=sizes.dtype, seed=1))


def _agrees(sizes: Sizes, held: Any, ran: Any, rows: np.ndarray) -> None:
    """Hidden states, keys and values are those of the rows without the others."""
    hidden, kv, _ = ran
    expected = defined(sizes.call(held, rows))
    assert_close(hidden, expected[0], reduction=sizes.mlp)
    pages = rows[:, None] * sizes.pages_of_row + np.arange(sizes.pages_of_row)
    assert_close(kv.array[pages.reshape(-1)], expected[1].array, reduction=sizes.hidden)


def test_rows_are_what_they_are_without_the_others():
    """By the definition, of few; or the test below would show nothing."""
    held, rows = _held(SMALL), np.array([0, 3, 6])
    call = SMALL.call(held, np.arange(SMALL.num_rows), SMALL.places(rows))
    _agrees(SMALL, held, defined(call), rows)
    with pytest.raises(AssertionError, match="relative error"):
        _agrees(SMALL, held, defined(call), np.array([0, 3, 5]))


def test_the_large_call_is_beyond_2_to_the_31():
    tokens = LARGE.num_rows * LARGE.length
    assert tokens * LARGE.hidden > 2**31 and tokens * LARGE.mlp > 2**32
    for width in (LARGE.hidden, LARGE.mlp, 2 * LARGE.mlp):
        row = 2**31 // width // LARGE.length
        near = {row - 1, row} & set(SAMPLE)
        assert near or width == 2 * LARGE.mlp, "gate and up are never whole"


@pytest.mark.gpu
@pytest.mark.parametrize("efficient", [0, 1000], ids=["persistent", "library"])
def test_offsets_beyond_2_to_the_31_are_right(efficient: int):
    """In lent pages, 18 GB of them, with the gate inside its GEMM and behind it."""
    skip_without("layer_program", "gpu")
    choices = ChainRows(persistent_from=efficient)
    held, rows = _held(LARGE), np.array(SAMPLE)
    call = LARGE.call(held, np.arange(LARGE.num_rows), LARGE.places(rows))
    array, held_pages = call.kv.array, call.kv.num_pages
    page_bytes = array.nbytes // held_pages
    with table.PART.using(choices):
        more = -(-cuda.activation_bytes(call) // page_bytes)
    assert more * page_bytes > 2 * 2**33
    shape = (held_pages + more, *array.shape[1:])
    arena = replace(call.kv, array=jnp.zeros(shape, array.dtype), lent=True)

    @partial(jax.jit, donate_argnums=0)
    def chain(kv: KVCache, call: LayerProgram) -> Any:
        with OP.using("cuda"):
            return OP(replace(call, kv=kv))

    with table.PART.using(choices):
        _agrees(LARGE, held, chain(arena, call), rows)
