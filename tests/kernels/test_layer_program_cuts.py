"""Steps with rows that are cut into pieces, layer after layer."""

import pathlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

from fdjax.kernels.attention_plan import Plan, make_plan
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.decode_attention import config as launch_config
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.paged import PageView
from fdjax.models.program import OP, LayerProgram, cuda
from fdjax.models.program.lower import windows_of
from fdjax.models.program.views import views_of
from tests.support import h200
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close, relative_error, tolerance
from tests.support.programs import HEADS, INTERMEDIATE, call_of, config_of, defined

ABSENT = 2**31 - 1
# The mean of so many tokens' values would be lost beside what a layer adds it to.
LOUD = 32.0
UNIFIED = UnifiedMax(0.0, -60.0, 1.5)
"""Of long rows some heads' largest scores lie above, and some within."""


@dataclass(frozen=True)
class Step:
    """A step with rows of any length up to the room of their pages.

    Attributes:
        name: of the model.
        kind: see `call_of`.
        rows: that decode.
        pieces: of the row that is cut the most, on an H200.
        width: pages of a row.
        dtype: of weights and keys.
        unified: the maximum of the softmax.
    """

    name: str
    kind: str
    rows: int
    pieces: int
    width: int = 570
    dtype: str = "bfloat16"
    unified: UnifiedMax | None = None

    def call(self) -> LayerProgram:
        config = config_of(self.name, unified=self.unified, width=self.width)
        sizes: dict[str, Any] = {"dtype": self.dtype, "width": self.width}
        call = call_of(config, self.kind, self.rows, **sizes)
        loud = call.kv.array.at[:, :, 1].multiply(LOUD)
        return replace(call, kv=call.kv.with_array(loud))

    def __str__(self) -> str:
        scheme = "" if self.unified is None else "-unified"
        return f"{self.name}-{self.kind}-{self.rows}-{self.dtype}{scheme}"


STEPS = (
    Step("llama", "decode", 1, 32),
    Step("llama", "decode", 5, 13),
    Step("llama", "decode", 5, 13, dtype="float16"),
    Step("llama", "decode", 5, 13, unified=UNIFIED),
    Step("llama", "decode", 12, 4, width=260),  # clusters of 8 blocks
    Step("llama", "mixed", 5, 12),
    Step("llama", "mixed", 5, 12, unified=UNIFIED),
    Step("chatglm", "mixed", 5, 12),
    Step("qwen3", "decode", 5, 13),
    # Layers with a window, in which nothing is cut, between those without one.
    Step("gemma2", "decode", 5, 13),
    Step("gptj", "decode", 1, 8),
    Step("opt", "mixed", 2, 6),
)
# With ALiBi what is far away does not matter: a lost piece would be noticed by few.
LINEAR = Step("bloom", "decode", 2, 16)
each_step = pytest.mark.parametrize("step", (*STEPS, LINEAR), ids=str)
# Of other numbers of pieces or layers; others would be counted and lose alike.
DIFFERENT = [one for one in STEPS if str(one) in {
    "llama-decode-5-bfloat16", "llama-mixed-5-bfloat16", "gemma2-decode-5-bfloat16",
}]  # fmt: skip


def _decoding(call: LayerProgram) -> PageView:
    view = views_of(call).decoding
    assert view is not None
    return view


def _plans(
    call: LayerProgram, monkeypatch: pytest.MonkeyPatch, home: pathlib.Path
) -> list[Plan]:
    """What the chain would have on an H200: one for each window."""
    view, windows = _decoding(call), windows_of(call.program)
    lengths = np.asarray(view.lengths).tolist()
    with monkeypatch.context() as patch:
        calls = cuda._calls(call, views_of(call)).decoding
        h200.pretend(patch, home)
        chosen = launch_config.heuristic(decode_cuda.sizes_of(calls[0]))
    shape = chosen.plan_shape(len(lengths), call.kv.num_kv_heads)
    room = calls[0].max_tokens
    return [make_plan(lengths, shape, room=room, window=one) for one in windows]


@pytest.mark.parametrize("step", DIFFERENT, ids=str)
def test_rows_are_cut(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    plans = _plans(step.call(), monkeypatch, tmp_path)
    most = [max(item.pieces for item in plan.items) for plan in plans]
    assert most == ([1, step.pieces] if step.name == "gemma2" else [step.pieces])


def _without(view: PageView, row: int, pages: slice) -> PageView:
    table = view.page_table.at[row, pages].set(ABSENT)
    return replace(view, page_table=table)


def _losing_a_piece(call: LayerProgram, plan: Plan) -> LayerProgram:
    """The call, the pages absent of the first piece of the row that has most."""
    item = max(plan.items, key=lambda item: (item.pieces, -item.piece))
    pages = slice(item.first, item.last)  # a tile is one
    batch, row = call.batch, item.row
    if batch.mixed is None:
        return replace(
            call, batch=replace(batch, pages=_without(batch.pages, row, pages))
        )
    decoding = _without(_decoding(call), row, pages)
    mixed = replace(batch.mixed, decoding=decoding)
    return replace(call, batch=replace(batch, mixed=mixed))


@pytest.mark.parametrize("step", DIFFERENT, ids=str)
def test_a_piece_that_is_lost_is_noticed(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """Or the comparison would show nothing."""
    call = step.call()
    plan = _plans(call, monkeypatch, tmp_path)[-1]
    whole, part = defined(call)[0], defined(_losing_a_piece(call, plan))[0]
    errors = [relative_error(*each) for each in zip(part, whole, strict=True)]
    assert max(errors) > 2 * tolerance(call.dtype, reduction=INTERMEDIATE)


def _assert_agree(call: LayerProgram, actual: Any, expected: Any) -> None:
    """Each row by itself, and new keys and values apart from those that are there."""
    for found, wanted in zip(actual[0], expected[0], strict=True):
        assert_close(found, wanted, reduction=INTERMEDIATE)
    before, after = np.asarray(call.kv.array), np.asarray(actual[1].array)
    written = expected[1].array != before.astype(np.float32)
    np.testing.assert_array_equal(after[~written], before[~written])
    for layer in range(call.kv.num_layers):
        for half in range(2):
            own = written[:, layer, half]
            new = actual[1].array[:, layer, half][own]
            wanted = expected[1].array[:, layer, half][own]
            assert_close(new, wanted, reduction=INTERMEDIATE)


def _assert_some_again(call: LayerProgram, recomputed: Any) -> None:
    """Of the longest row, whose pieces say which, but not all of its heads."""
    longest = int(np.argmax(np.asarray(call.batch.pages.lengths)))
    again = int(np.asarray(recomputed)[:, longest].sum())
    assert 0 < again < HEADS * call.kv.num_layers


@pytest.mark.parametrize("step", [one for one in STEPS if one.unified], ids=str)
def test_some_heads_of_a_cut_row_leave_the_bounds(step: Step):
    call = step.call()
    _assert_some_again(call, defined(call)[2])


@pytest.mark.gpu
@each_step
def test_the_chain_agrees_with_the_definition(step: Step):
    """Twice, by the bit: each layer finds counters as the one before it left them."""
    skip_without("layer_program", "gpu")
    call = step.call()

    @jax.jit
    def chain(call: LayerProgram) -> Any:
        with OP.using("cuda"):
            return OP(call)

    actual, expected = chain(call), defined(call)
    _assert_agree(call, actual, expected)
    if step.unified is not None:
        _assert_some_again(call, actual[2])
    again = chain(call)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
