"""`embedding`: the definition against its formula, the kernel against it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.embedding import OP, Embedding, cuda, embedding, reference
from fdjax.kernels.weight import Dense
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
VOCAB, POSITIONS = 50, 7

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
each_scale = pytest.mark.parametrize("scale", [None, 45.25, 62.5], ids=str)
each_place = pytest.mark.parametrize("has_places", [False, True], ids=["", "positions"])


def _draw(
    rows: int, size: int, dtype: Any, *, scale: float | None, has_places: bool
) -> Embedding:
    """A call; some ids lie outside of their tables."""
    random = np.random.default_rng(rows)

    def table(count: int) -> jax.Array:
        return jnp.asarray(random.normal(0.5, 2.0, (count, size)), dtype)

    def ids(count: int) -> jax.Array:
        return jnp.asarray(random.integers(-2, count + 2, rows), jnp.int32)

    return Embedding(
        Dense(table(VOCAB)),
        ids(VOCAB),
        table(POSITIONS) if has_places else None,
        ids(POSITIONS) if has_places else None,
        scale=scale,
    )


@each_dtype
@each_scale
@each_place
def test_the_definition_is_the_formula(
    dtype: Any, scale: float | None, has_places: bool
):
    call = _draw(40, 97, dtype, scale=scale, has_places=has_places)
    actual = jax.jit(reference.embedding)(call)
    tokens = np.clip(np.asarray(call.tokens), 0, VOCAB - 1)
    expected = np.asarray(call.table.values).astype(np.float64)[tokens]
    if scale is not None:
        expected = expected * np.float64(np.asarray(scale, dtype))
    if call.position_table is not None:
        places = np.clip(np.asarray(call.positions), 0, POSITIONS - 1)
        expected = expected + np.asarray(call.position_table).astype(np.float64)[places]
    assert actual.dtype == dtype
    assert_close(actual, expected, reduction=2)


def test_without_scale_and_positions_it_is_a_row_of_the_table():
    call = _draw(40, 97, jnp.bfloat16, scale=None, has_places=False)
    tokens = jnp.clip(call.tokens, 0, VOCAB - 1)
    np.testing.assert_array_equal(
        embedding(call.table, call.tokens), call.table.values[tokens]
    )


def test_operands_that_do_not_match_are_named():
    table, tokens = Dense(jnp.ones((4, 8))), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="come together"):
        embedding(table, tokens, jnp.ones((4, 8)))
    with pytest.raises(ValueError, match=r"position_table has shape \(4, 7\)"):
        embedding(table, tokens, jnp.ones((4, 7)), tokens)
    with pytest.raises(ValueError, match=r"positions has shape \(2,\), tokens has \(3"):
        embedding(table, tokens, table.values, tokens[:2])


@pytest.mark.usefixtures("on_h200")
def test_what_the_kernel_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda.ffi, "refuse", lambda name, platform: None)

    def reason(table: jax.Array, places: jax.Array | None = None) -> str:
        ids = jnp.zeros(3, jnp.int32)
        rows = None if places is None else ids
        call = Embedding(Dense(table), ids, places, rows, scale=None)
        return str(OP.refuse("cuda", call))

    assert reason(jnp.ones((4, 8), jnp.bfloat16)) == "None"
    assert "194 bytes" in reason(jnp.ones((4, 97), jnp.bfloat16))
    assert "bfloat16, float32" in reason(jnp.ones((4, 8)), jnp.ones((4, 8), "bfloat16"))
    assert "without vectors" in reason(jnp.ones((0, 8)))


@pytest.mark.gpu
@each_dtype
@each_scale
@each_place
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 80), (300, 4096)])
def test_the_kernel_agrees_with_the_definition(
    rows: int, size: int, dtype: Any, scale: float | None, has_places: bool
):
    skip_without(cuda.NAME, "gpu")
    call = _draw(rows, size, dtype, scale=scale, has_places=has_places)
    expected = jax.jit(reference.embedding)(call)
    with OP.using("cuda"):
        actual = jax.jit(OP)(call)
    assert_close(actual, expected, reduction=2)


@pytest.mark.gpu
def test_a_vector_beyond_2_to_the_31_elements_is_found():
    skip_without(cuda.NAME, "gpu")
    size = 4096
    count = 2**31 // size + 3
    first = jnp.arange(count) % 2048
    table = jnp.broadcast_to(first.astype(jnp.float16)[:, None], (count, size)).copy()
    tokens = jnp.asarray([0, count - 1, count - 2], jnp.int32)
    with OP.using("cuda"):
        actual = jax.jit(embedding)(Dense(table), tokens)
    np.testing.assert_array_equal(actual[:, 0], tokens % 2048)
