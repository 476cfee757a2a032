"""`page_move`: the definition against slices, in place; the kernel against it."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import noise, struct
from fdjax.kernels.page_move import OP, PageMove, cuda, page_move, reference
from fdjax.kernels.paged import KVCache
from fdjax.notation import Array
from tests.support.handlers import skip_without

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
PAGES = 9
MOVES = {7: 0, 3: 5}

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
each_shape = pytest.mark.parametrize(
    "shape", [(2, 2, 3, 1, 2), (1, 2, 5, 3, 10), (3, 2, 16, 2, 64)], ids=str
)


def _ids(values: Any) -> Array:
    return jnp.asarray(values, jnp.int32)


def _cache(shape: tuple[int, ...], dtype: Any, *, pages: int = PAGES) -> KVCache:
    like = struct(pages, *shape, dtype=dtype)
    return KVCache.page_major(noise(np.random.default_rng(0), like))


def _bits(array: Array) -> np.ndarray[Any, Any]:
    held = np.asarray(array)
    return held.view(f"u{held.itemsize}")


def _call(cache: KVCache, moves: dict[int, int]) -> PageMove:
    """Moves, with padding before and after them: absent sources, targets, or both."""
    end, far = cache.num_pages, 2**31 - 1
    some = [(-1, 2), (1, -1), (end, 4), (3, end)]
    more = [(far, -1), (8, -(2**31)), (-(2**31), 6), (8, far), (-1, -1)]
    pairs = np.asarray([*some, *moves.items(), *more])
    return PageMove(cache, _ids(pairs[:, 0]), _ids(pairs[:, 1]))


def _moved(array: Array, moves: dict[int, int]) -> np.ndarray[Any, Any]:
    """The bits of an array after its pages are copied one by one."""
    before = _bits(array)
    after = before.copy()
    for source, target in moves.items():
        after[target] = before[source]
    return after


# --- The definition -------------------------------------------------------------------


@each_dtype
@each_shape
def test_pages_are_copied_and_padding_is_not(shape: tuple[int, ...], dtype: Any):
    cache = _cache(shape, dtype)
    expected = _moved(cache.array, MOVES)
    actual = jax.jit(reference.page_move)(_call(cache, MOVES))
    np.testing.assert_array_equal(_bits(actual.array), expected, strict=True)


def test_bits_that_are_no_numbers_are_kept():
    bits = np.arange(2**16, dtype=np.uint16)
    held = np.stack([bits, np.zeros_like(bits)]).view(jnp.bfloat16)
    cache = KVCache.page_major(jnp.asarray(held).reshape(2, 1, 2, 8, 8, 512))
    after = page_move(cache, _ids([0]), _ids([1])).array
    np.testing.assert_array_equal(_bits(after)[1].reshape(-1), bits)


def test_pages_of_other_layouts_are_whole_too():
    array = noise(np.random.default_rng(0), struct(4, 3, 2, 2, 8, dtype=jnp.float32))
    after = page_move(KVCache.interleaved(array, head_dim=5), _ids([3]), _ids([1]))
    np.testing.assert_array_equal(_bits(after.array), _moved(array, {3: 1}))


def test_no_moves_change_nothing():
    cache = _cache((1, 2, 2, 1, 2), jnp.float32)
    expected = _bits(cache.array)
    after = page_move(cache, _ids([]), _ids([]))
    np.testing.assert_array_equal(_bits(after.array), expected)


def _check_in_place(name: str) -> None:
    """A donated array keeps its address, and the program no second one.

    What is expected comes from another array of the same values: NumPy's view of an
    array on a CPU is given back late, and a buffer that has one is copied, not
    donated.
    """
    cache, same = (_cache((2, 2, 16, 2, 64), jnp.bfloat16, pages=512) for _ in range(2))
    expected = _moved(same.array, MOVES)
    ids = _ids(list(MOVES)), _ids(list(MOVES.values()))
    step = jax.jit(page_move, donate_argnums=0)
    with OP.using(name):
        compiled = step.lower(cache, *ids).compile()
        pointer = cache.array.unsafe_buffer_pointer()
        after = step(cache, *ids).array
    assert after.unsafe_buffer_pointer() == pointer
    assert cache.array.is_deleted()
    np.testing.assert_array_equal(_bits(after), expected)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= after.nbytes
    assert memory.temp_size_in_bytes < after.nbytes // 16
    shape = ",".join(map(str, after.shape))
    program = compiled.as_text() or ""
    assert re.findall(rf"= \S+\[{shape}\]\S* copy(?:-start)?\(", program) == []


def test_the_definition_updates_a_donated_array_in_place():
    _check_in_place("reference")


# --- Whose fault ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (_ids([1, 2]), _ids([3]), r"shape \(2,\), targets \(1,\)"),
        (_ids([[1]]), _ids([[3]]), r"shape \(1, 1\)"),
        (jnp.asarray([1], jnp.uint32), _ids([3]), "uint32, targets int32"),
        (_ids([1]), jnp.asarray([3.0]), "int32, targets float32"),
    ],
)
def test_wrong_ids_are_value_errors(sources: Array, targets: Array, message: str):
    with pytest.raises(ValueError, match=message):
        page_move(_cache((1, 2, 2, 1, 2), jnp.float32), sources, targets)


@pytest.mark.usefixtures("on_h200")
def test_what_the_kernel_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda.ffi, "refuse", lambda name, platform: None)

    def reason(*shape: int, moves: int = 1, dtype: Any = jnp.bfloat16) -> str:
        cache = KVCache.page_major(struct(2, *shape, dtype=dtype))
        ids = struct(moves, dtype=jnp.int32)
        return str(OP.refuse("cuda", PageMove(cache, ids, ids)))

    assert reason(32, 2, 16, 8, 128) == "None"
    assert reason(2, 2, 1, 1, 2, dtype=jnp.float8_e4m3fn) == (
        "a page is 8 bytes; it takes multiples of 16"
    )
    assert "60 bytes" in reason(1, 2, 5, 1, 3)
    assert reason(1, 2, 2, 1, 2, moves=65_535) == "None"
    assert "65536 pages; it takes 65535" in reason(1, 2, 2, 1, 2, moves=65_536)


def test_without_a_gpu_the_definition_serves():
    ids = _ids([0])
    call = PageMove(_cache((1, 2, 2, 1, 2), jnp.float32), ids, ids)
    if OP.refuse("cuda", call) is None:
        pytest.skip("there is a GPU")
    assert OP.choice(call) == "reference"


# --- The kernel -----------------------------------------------------------------------


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize(
    "shape",
    # One access, less than a block, just above one, several, a page of Llama-3-8B.
    [(1, 2, 1, 1, 8), (2, 2, 3, 1, 8), (1, 2, 16, 5, 56), (32, 2, 16, 8, 128)],
    ids=str,
)
@pytest.mark.parametrize("moves", [1, 3, 64])
def test_the_kernel_agrees_with_the_definition(
    moves: int, shape: tuple[int, ...], dtype: Any
):
    skip_without(cuda.NAME, "gpu")
    cache = _cache(shape, dtype, pages=2 * 64 + 3)
    ids = np.random.default_rng(moves).permutation(cache.num_pages).tolist()
    pairs = dict(zip(ids[:moves], ids[moves : 2 * moves], strict=True))
    call = _call(cache, pairs)
    expected = _bits(jax.jit(reference.page_move)(call).array)
    np.testing.assert_array_equal(expected, _moved(cache.array, pairs))
    with OP.using("cuda"):
        move = jax.jit(page_move, donate_argnums=0)
        actual = move(call.kv, call.sources, call.targets)
    np.testing.assert_array_equal(_bits(actual.array), expected)


@pytest.mark.gpu
def test_the_kernel_updates_a_donated_array_in_place():
    skip_without(cuda.NAME, "gpu")
    _check_in_place("cuda")


@pytest.mark.gpu
def test_vmap_is_refused_because_one_kv_array_is_updated():
    skip_without(cuda.NAME, "gpu")
    cache = _cache((1, 2, 1, 1, 8), jnp.float32)
    with OP.using("cuda"), pytest.raises(NotImplementedError, match="vmap_method"):
        jax.vmap(lambda ids: page_move(cache, ids, ids + 1).array)(_ids([[0], [2]]))


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_32_bytes():
    skip_without(cuda.NAME, "gpu")
    shape = (2100, 32, 2, 16, 8, 128)
    last = shape[0] - 1
    assert 2 * math.prod(shape[1:]) * last > 2**32
    # Every element of a page tells which one it is, in whole numbers of the type.
    names = (jnp.arange(shape[0]) % 2048).astype(jnp.float16)
    held = jnp.broadcast_to(names.reshape(-1, 1, 1, 1, 1, 1), shape).copy()
    with OP.using("cuda"):
        move = jax.jit(page_move, donate_argnums=0)
        after = move(KVCache.page_major(held), _ids([last, 5]), _ids([3, last - 1]))
    expected = np.array(names)
    expected[[3, last - 1]] = expected[[last, 5]]
    rows = after.array.reshape(shape[0], -1)
    np.testing.assert_array_equal(jax.jit(lambda x: x.min(1))(rows), expected)
    np.testing.assert_array_equal(jax.jit(lambda x: x.max(1))(rows), expected)
