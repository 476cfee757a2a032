"""`page_move`, compiled for an H200: one launch, and no second KV array."""

import re

import jax.numpy as jnp
import pytest

from fdjax.kernels.cases import struct
from fdjax.kernels.page_move import OP, page_move
from fdjax.kernels.paged import KVCache
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

SHAPE = (5120, 32, 2, 16, 8, 128)  # 10 GiB
MOVES = 64


@pytest.mark.parametrize("name", OP.names)
def test_a_donated_array_is_updated_in_place(name: str):
    cache = KVCache.page_major(struct(*SHAPE, dtype=jnp.bfloat16))
    ids = struct(MOVES, dtype=jnp.int32)
    with OP.using(name):
        compiled = compile_for_h200(page_move, cache, ids, ids, donate_argnums=(0,))
    program, memory = compiled.as_text(), compiled.memory_analysis()
    assert program is not None and memory is not None
    page_bytes = 2 * 32 * 2 * 16 * 8 * 128
    assert memory.alias_size_in_bytes == SHAPE[0] * page_bytes
    dims = ",".join(map(str, SHAPE))
    assert re.findall(rf"= bf16\[{dims}\]\S* copy(?:-start)?\(", program) == []
    if name == "cuda":
        assert program.count('custom_call_target="fdjax.page_move.') == 1
        assert "output_to_operand_aliasing={{}: (0, {})}" in program
        assert memory.temp_size_in_bytes == 0
    else:  # the pages, gathered
        assert memory.temp_size_in_bytes <= 2 * MOVES * page_bytes
