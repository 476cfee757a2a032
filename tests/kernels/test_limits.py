"""The limits that the extension exports, and the sizes that Python lays out itself."""

from typing import Any

import pytest

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan import shape
from fdjax.kernels.decode_attention import config as decode_config
from fdjax.kernels.matmul import params
from fdjax.kernels.paged import calls
from fdjax.kernels.prefill_plan import tiles
from fdjax.kernels.shared_prefix import groups, plan
from tests.support.handlers import skip_without
from tests.support.operations import operations
from tests.support.python import run_python


@pytest.fixture
def limits() -> dict[str, Any]:
    skip_without("rope_kv_write", "cpu")
    from fdjax import _ffi

    return _ffi.limits()


def test_every_operation_with_a_handler_has_limits(limits: dict[str, Any]):
    # Those of attention over pages belong to several operations.
    assert sorted({*limits} - {"paged"}) == operations()
    for of_one in limits.values():
        assert of_one
        for value in of_one.values():
            assert all(n > 0 for n in (value if isinstance(value, tuple) else (value,)))


# Arrays that Python makes, here or on a machine without the extension; handlers check
# their shapes.
SIZES: dict[tuple[str, str], int | tuple[int, ...]] = {
    ("attention_plan", "tile_tokens"): shape.TILE_TOKENS,
    ("attention_plan", "header"): shape.HEADER,
    ("attention_plan", "item"): shape.ITEM,
    ("decode_attention", "max_heads"): max(decode_config.HEADS),
    ("decode_attention", "max_warps"): max(decode_config.WARPS),
    ("matmul", "padded_tokens"): params.PADDED_M,
    ("matmul", "tile_columns"): params.TILE_COLUMNS,
    ("paged", "all_tokens"): calls.ALL_TOKENS,
    ("prefill_attention", "tile_rows"): tiles.TILE_ROWS,
    ("prefill_attention", "tile_integers"): tiles.WORK,
    ("prefill_plan", "key_tile"): tiles.KEY_TILE,
    ("prefill_plan", "piece_cost"): tiles.PIECE_COST,
    ("prefill_plan", "max_share"): tiles.MAX_SHARE,
    ("shared_prefix", "max_levels"): groups.MAX_LEVELS,
    ("shared_prefix", "part_integers"): plan.PART,
}


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("operation", "name"), SIZES)
def test_sizes_are_those_of_the_handlers(operation: str, name: str):
    size = SIZES[operation, name]
    ask = ffi.limit if isinstance(size, int) else ffi.limits
    assert ask(operation, name) == size


@pytest.mark.usefixtures("limits")
def test_a_limit_that_nobody_exports_is_a_mistake():
    with pytest.raises(AssertionError, match="no limit max_tea of draw"):
        ffi.limit("draw", "max_tea")
    with pytest.raises(AssertionError, match="several head_dims"):
        ffi.limit("decode_attention", "head_dims")


def test_without_the_extension_nothing_is_limited():
    printed = run_python(
        "import sys; sys.modules['fdjax._ffi'] = None",
        "import jax; jax.config.update('jax_platforms', 'cpu')",
        "import jax.numpy as jnp",
        "from fdjax.kernels import ffi",
        "from fdjax.kernels.matmul import OP, matmul",
        "from fdjax.kernels.layer_program import table",
        "import fdjax.models.program",
        "assert ffi.limits('decode_attention', 'head_dims') == ()",
        "assert table.ChainRows().flat_up_to == ffi.limit('draw', 'max_vocab')",
        "from fdjax.kernels.weight import Dense",
        "print(matmul(jnp.ones((70, 8)), Dense(jnp.ones((8, 8)))).sum())",
    )
    assert printed == "4480.0\n"
