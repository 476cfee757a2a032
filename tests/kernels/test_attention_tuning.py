"""Which blocks serve, and what is read once: from made-up times, and as programs."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import Unsupported
from fdjax.kernels.chip import Chip
from fdjax.kernels.decode_attention import config, table
from fdjax.kernels.decode_attention.table import Blocks
from fdjax.kernels.paged import PagedAttention
from fdjax.kernels.shared_prefix import find_groups
from fdjax.kernels.shared_prefix.table import Worth
from fdjax.kernels.tuning import (
    attention_blocks,
    attention_times,
    shared_times,
    shared_worth,
    stopwatch,
)
from fdjax.kernels.tuning.shared_worth import OWN, Sharing
from tests.support import h200
from tests.support.numerics import assert_close

BEFORE = Blocks()


class MadeUpBlocks:
    """What a grid of so many blocks takes, and from where on large blocks are faster.

    Args:
        best: blocks of a grid.
        long_from: tokens.
        if_two_fill: the same of 8 rows.
    """

    def __init__(self, best: int, long_from: int, if_two_fill: int) -> None:
        self._best = best
        self._from = {8: if_two_fill}
        self._others = long_from
        self.asked = 0

    def microseconds(self, blocks: Blocks, rows: int, tokens: int) -> float:
        self.asked += 1
        if (rows, tokens) in attention_blocks.MANY:
            assert (blocks.long_from, blocks.long_from_if_two_fill) == (8192, 1500)
            return rows * (1 + abs(blocks.blocks_two_an_sm - self._best) / 100)
        assert blocks.blocks_two_an_sm == self._best
        assert blocks.long_from == blocks.long_from_if_two_fill
        faster = tokens >= self._from.get(rows, self._others)
        return 90 if (blocks.long_from <= tokens) == faster else 100


def test_blocks_are_those_of_an_h200_where_times_are():
    times, called = MadeUpBlocks(256, 8192, 1500), list[None]()
    found = attention_blocks.measured(
        times, Chip(), BEFORE, on_point=lambda: called.append(None)
    )
    assert found.blocks == BEFORE
    assert len(called) == attention_blocks.num_points(Chip(), BEFORE)
    assert sorted(found.points) == [1, 4, 8, 16]
    assert set(found.many) == {256, 264}
    assert times.asked < 64, "each is a program to compile"


def test_blocks_of_another_chip():
    chip = Chip(num_sms=114)  # 7 rows of 8 heads, two blocks each, fill it
    times = MadeUpBlocks(228, 4096, 4096)
    found = attention_blocks.measured(times, chip, BEFORE)
    assert found.blocks == Blocks(4096, 4096, 228)
    assert 7 in found.points and 8 not in found.points


def test_rows_are_long_no_later_where_two_blocks_fill():
    times = MadeUpBlocks(256, 2048, 10**6)
    found = attention_blocks.measured(times, Chip(), BEFORE)
    assert found.blocks == Blocks(2048, 2048, 256)


class MadeUpReads:
    """Layers that take 1 us a 1,000 tokens, and 8 us and 1 us a group more if once."""

    def rows(self, sharing: Sharing, once: int) -> float:
        saved = sum((rows - 1) * tokens for rows, tokens in sharing.groups[:once])
        every = sum(rows * (tokens + sharing.own) for rows, tokens in sharing.groups)
        return (every - saved) / 1000 + (7 + once if once else 0)

    def prompts(self, count: int, tokens: int, *, once: bool) -> float:
        beams = 1 if once else shared_worth.WIDTH
        return 1 + count * tokens * beams / 1000 + (8 if once else 0)


def test_what_is_worth_to_be_read_once():
    called: list[None] = []
    points = shared_worth.measured(MadeUpReads(), on_point=lambda: called.append(None))
    assert len(called) == shared_worth.NUM_POINTS
    found = shared_worth.worth(points, Worth(0, 0, 0))
    # One group pays with the two launches, and one beside others with its own.
    assert 8_000 < found.of_batch <= 16_384
    assert 1_000 < found.of_group <= 1_056
    token = 2 * 40 * 128 * 2
    assert 8_000 * token <= found.prompt_bytes <= 20_000 * token
    again = shared_worth.worth(points, found)
    assert again == found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers, and a row's own tokens fewer, so that a CPU reads them."""
    monkeypatch.setattr(attention_times, "_LAYERS", (2, 2))
    monkeypatch.setattr(attention_times, "DTYPE", jnp.float32)
    monkeypatch.setattr(attention_times, "HEAD_DIM", 16)


SHARING = Sharing(((3, 64), (2, 32), (1, 16)))


@pytest.mark.usefixtures("small")
def test_rows_share_what_a_batch_says():
    call = shared_times._of_rows(SHARING)
    lengths = np.asarray(call.pages.lengths).tolist()
    assert lengths == [64 + OWN] * 3 + [32 + OWN] * 2 + [16 + OWN]
    groups = find_groups(
        np.asarray(call.pages.page_table), lengths, page_size=16, worth=Worth(1, 1)
    )
    assert [(group.rows, group.end) for group in groups] == [
        ((0, 1, 2), 64),
        ((3, 4), 32),
    ]
    sharing = shared_times._sharing(call.pages, SHARING, 1).prefixes
    assert sharing is not None
    assert np.asarray(sharing.tokens).tolist() == [64] * 3 + [0] * 3


@pytest.mark.usefixtures("small")
def test_beams_have_their_prompt_and_tokens_of_their_own():
    call = shared_times._of_beams(2, 32)
    assert call.beams.width == shared_worth.WIDTH
    whole = call.beams.whole(call.pages, call.kv.cache)
    assert np.asarray(whole.lengths).tolist() == [32 + OWN] * 8
    slots = np.asarray(whole.page_table)[:, : 32 + OWN]
    assert (slots >= 0).all()
    assert (slots[:4, :32] == slots[0, :32]).all()
    assert (slots[4, :32] != slots[0, :32]).all()


def _lowered(attend: Any, call: Any) -> jax.stages.Lowered:
    return jax.jit(attention_times.chain(attend)).lower(call)


def _programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, PagedAttention]]:
    """What is timed, in the place of its time."""
    kept: list[tuple[Any, PagedAttention]] = []

    def keep(attend: Any, call: PagedAttention) -> float:
        kept.append((attend, call))
        return 1.0

    monkeypatch.setattr(attention_times, "microseconds", keep)
    reads = shared_times.SharedTimes()
    for once in (0, 2):
        assert reads.rows(SHARING, once) == 1.0
    for once in (False, True):
        assert reads.prompts(2, 32, once=once) == 1.0
    yield from kept


def test_programs_read_each_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    h200.pretend(monkeypatch, tmp_path)
    monkeypatch.setattr(attention_times, "_LAYERS", (2, 2))
    texts = [
        _lowered(attend, call).as_text() for attend, call in _programs(monkeypatch)
    ]
    prefixes = [text.count("shared_prefix") for text in texts]
    assert prefixes[0] == prefixes[2] == 0
    assert prefixes[1] >= 1 and prefixes[3] >= 1
    assert all("decode_attention" in texts[way] for way in (0, 2))


def test_a_program_has_the_blocks_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    h200.pretend(monkeypatch, tmp_path)
    monkeypatch.setattr(attention_times, "_LAYERS", (2, 2))
    call = attention_times._of_equal_rows(8, 2048)
    texts: list[str] = []
    for start in (attention_blocks.NEVER, 1):
        blocks = dataclasses.replace(
            BEFORE, long_from=start, long_from_if_two_fill=start
        )
        with table.PART.using(blocks):
            chosen = config.heuristic(config.Sizes(8, 8, 2048))
            assert chosen.warps == (16 if start == 1 else 8)
            program = _lowered(attention_times.attend, call)
            texts.append(program.as_text())
    assert texts[0] != texts[1]


@pytest.mark.usefixtures("small")
def test_layers_are_chained_and_timed(monkeypatch: pytest.MonkeyPatch):
    def add_layer(call: PagedAttention) -> Any:
        return call.q + call.kv.index + 1

    monkeypatch.setattr(stopwatch, "SAMPLE_S", 1e-4)
    call = attention_times._of_equal_rows(2, 32)
    run = _lowered(add_layer, call).compile()
    assert_close(run(call), call.q + 1 + 2, reduction=1)
    assert 0 < attention_times.microseconds(add_layer, call) < 1e6
    with pytest.raises(Unsupported, match="decode_attention"):
        attention_times.BlockTimes().microseconds(BEFORE, 2, 32)
