"""Programs that time attention, compiled for an H200: all layers stay in them."""

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

from fdjax.kernels.paged import PagedAttention
from fdjax.kernels.tuning import attention_times, shared_times
from fdjax.kernels.tuning.shared_worth import Sharing
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

LAYERS = 6
SHARING = Sharing(((3, 64), (2, 32), (1, 16)))


def _programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, PagedAttention]]:
    """What would be timed."""
    kept: list[tuple[Any, PagedAttention]] = []

    def keep(attend: Any, call: PagedAttention) -> float:
        kept.append((attend, call))
        return 1.0

    monkeypatch.setattr(attention_times, "_LAYERS", (LAYERS, LAYERS))
    monkeypatch.setattr(attention_times, "microseconds", keep)
    reads = shared_times.SharedTimes()
    for once in (0, 2):
        reads.rows(SHARING, once)
    for once in (False, True):
        reads.prompts(2, 32, once=once)
    return dict(zip(("each", "once", "beams", "prompts_once"), kept, strict=True))


@pytest.mark.parametrize(
    ("name", "handler"),
    [
        ("each", "decode_attention"),
        ("once", "shared_prefix"),
        ("beams", "decode_attention"),
        ("prompts_once", "shared_prefix"),
    ],
)
def test_every_layer_stays_in_the_program(
    name: str, handler: str, monkeypatch: pytest.MonkeyPatch
):
    attend, call = _programs(monkeypatch)[name]
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), call
    )
    program: Callable[[Any], Any] = attention_times.chain(attend)
    text = compile_for_h200(program, shapes).as_text()
    assert text is not None
    calls = re.findall(r"custom-call\(.*fdjax\.(\w+)\.", text)
    assert [one for one in calls if one != "attention_plan"] == [handler] * LAYERS
    shape = ",".join(map(str, call.kv.cache.array.shape))
    assert not re.findall(rf"bf16\[{shape}\]\S* copy\(", text)
