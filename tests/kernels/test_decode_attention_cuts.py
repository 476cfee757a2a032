"""Rows that the plan cuts into pieces: how many these are, and what they add up to."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.attention_plan import Plan, make_plan
from fdjax.kernels.cases import noise, struct
from fdjax.kernels.decode_attention import (
    OP,
    DecodeAttention,
    UnifiedMax,
    config,
    cuda,
    handler,
    reference,
)
from fdjax.kernels.decode_attention.arguments import Attended
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec, highest_of, scores_of
from tests.support.decode_calls import WIDE, poisoned, with_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close, relative_error, tolerance

PAGE_SIZE = 16
ABSENT = 2**31 - 1
LONG = 8192
"""Rows of more tokens are compared apart from others, whose page tables are narrow."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """What is static in a call."""

    kv_heads: int
    group: int
    head_dim: int
    dtype: Any = jnp.bfloat16
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of unequal length.

    Attributes:
        lengths: of the rows.
        heads: of all of them.
        pieces: of each row that is longer than `LONG`, on an H200.
    """

    lengths: tuple[int, ...]
    heads: Heads
    pieces: tuple[int, ...] = ()

    @property
    def pages(self) -> tuple[int, ...]:
        """How many each row has."""
        return tuple(-(-length // PAGE_SIZE) for length in self.lengths)

    @property
    def long_rows(self) -> np.ndarray:
        return np.flatnonzero(np.array(self.lengths) > LONG)

    def structs(self) -> DecodeAttention:
        """The call, without data."""
        own, rows = self.heads, len(self.lengths)
        shape = (sum(self.pages), 1, 2, PAGE_SIZE, own.kv_heads, own.head_dim)
        lengths = struct(rows, dtype=jnp.int32)
        table = struct(rows, max(self.pages), dtype=jnp.int32)
        return DecodeAttention(
            struct(rows, own.kv_heads * own.group, own.head_dim, dtype=own.dtype),
            KVCache.page_major(struct(*shape, dtype=own.dtype)).layer(0),
            PageView(table, lengths, starts=lengths),
            ScoreSpec(None, own.head_dim**-0.5, None, own.window),
            unified=None,
        )

    def call(self) -> DecodeAttention:
        """The call over noise: pages in random order, NaN where there is no token."""
        call, random = self.structs(), np.random.default_rng(7)
        cache = call.kv.cache
        filled = cache.with_array(noise(random, cache.array)).layer(0)
        call = dataclasses.replace(call, q=noise(random, call.q), kv=filled)
        table = np.full(call.pages.page_table.shape, ABSENT, np.int32)
        pages = iter(random.permutation(cache.num_pages))
        for row, count in enumerate(self.pages):
            table[row, :count] = [next(pages) for _ in range(count)]
        lengths = jnp.asarray(self.lengths, jnp.int32)
        return poisoned(with_pages(call, jnp.asarray(table), lengths))

    def plan(self, chosen: config.LaunchConfig | None = None) -> Plan:
        """The one that the kernel has with a launch config, or the one it chooses."""
        call = self.structs()
        chosen = chosen or config.heuristic(cuda.sizes_of(call))
        shape = chosen.plan_shape(len(self.lengths), self.heads.kv_heads)
        room, window = call.max_tokens, self.heads.window
        return make_plan(self.lengths, shape, room=room, window=window)


def _pieces(plan: Plan, row: int) -> int:
    return next(item.pieces for item in plan.items if item.row == row)


LLAMA = Heads(8, 4, 128)
MQA = Heads(1, 8, 64, jnp.float16)
WINDOW = Heads(1, 8, 64, window=5000)
SHORT = (512,) * 63 + (32_768,)
MIDDLE = (4096,) * 7 + (32_768,)
_ODD = [97 * row % 1000 | 1 for row in range(31)]
ODD = (*_ODD[:9], 9001, *_ODD[9:23], 20_017, *_ODD[23:])
BATCHES = {
    "llama_63x512": Batch(SHORT, LLAMA, (16,)),
    "llama_7x4096": Batch(MIDDLE, LLAMA, (4,)),
    "llama_odd": Batch(ODD, LLAMA, (7, 14)),
    "mqa_63x512": Batch(SHORT, MQA, (32,)),
    "mqa_7x4096": Batch(MIDDLE, MQA, (69,)),
    "mqa_odd": Batch(ODD, MQA, (13, 28)),
    "window_63x512": Batch(SHORT, WINDOW, (7,)),
    "window_7x4096": Batch(MIDDLE, WINDOW, (10,)),
    "window_odd": Batch(ODD, WINDOW, (10, 10)),
}
each_batch = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
SCHEMES: dict[str, Callable[[float], UnifiedMax | None]] = {
    "synchronised": lambda _: None,
    "unified": lambda _: WIDE,
    "above": lambda bound: UnifiedMax(0.0, -40.0, bound),
    "below": lambda bound: UnifiedMax(0.0, bound, 40.0),
}

_reference = jax.jit(reference.decode_attention)


@jax.jit
def _highest(call: DecodeAttention) -> jax.Array:
    """The largest score of each query head, `[B, Hkv, G]`."""
    (keys, _), held = call.gathered(), call.held()
    positions = (call.pages.lengths - 1)[:, None]
    scores = scores_of(call.q[:, None], keys, positions, held, call.scores)
    return highest_of(scores, None)[..., 0]


def _only(call: DecodeAttention, rows: np.ndarray) -> DecodeAttention:
    """Some rows of a call, whose page table is as wide as they need."""
    lengths = call.pages.lengths[rows]
    width = -(-int(lengths.max()) // PAGE_SIZE)
    part = dataclasses.replace(call, q=call.q[rows])
    return with_pages(part, call.pages.page_table[rows, :width], lengths)


def _parts(batch: Batch) -> list[np.ndarray]:
    """Rows that are compared together: one table of all would take gigabytes."""
    every = np.arange(len(batch.lengths))
    others = np.setdiff1d(every, batch.long_rows)
    return [others, *(batch.long_rows[i : i + 1] for i in range(len(batch.pieces)))]


def _bound(batch: Batch, call: DecodeAttention) -> float:
    """What parts the long rows' largest scores, as far as can be from any row's."""
    by_part = [np.ravel(_highest(_only(call, rows))) for rows in _parts(batch)]
    every = np.sort(np.concatenate(by_part).astype(np.float64))
    first, last = np.quantile(np.concatenate(by_part[1:]), [0.25, 0.75])
    inside = every[(first <= every) & (every <= last)]
    at = int(np.argmax(np.diff(inside)))
    return float((inside[at] + inside[at + 1]) / 2)


def _run(name: str) -> Callable[[DecodeAttention], Attended]:
    """The operation under a jit of its own, which knows no earlier trace."""
    run = jax.jit(functools.partial(OP))

    def using(call: DecodeAttention) -> Attended:
        with OP.using(name):
            return run(call)

    return using


def _check(found: Attended, call: DecodeAttention, parts: Sequence[np.ndarray]) -> None:
    """Each row by itself: the values of long ones are small beside those of others."""
    lengths = np.asarray(call.pages.lengths)
    for rows in parts:
        expected, counts = _reference(_only(call, rows))
        np.testing.assert_array_equal(np.asarray(found[1])[rows], np.asarray(counts))
        for place, row in enumerate(rows):
            assert_close(found[0][row], expected[place], reduction=int(lengths[row]))


def _check_scheme(name: str, batch: Batch, scheme: str) -> None:
    call = batch.call()
    unified = SCHEMES[scheme](_bound(batch, call))
    call = dataclasses.replace(call, unified=unified)
    run = _run(name)
    found = run(call)
    _check(found, call, _parts(batch))
    again = np.asarray(found[1])[batch.long_rows].sum()
    heads = batch.heads.kv_heads * batch.heads.group * len(batch.long_rows)
    assert (0 < again < heads) if scheme in ("above", "below") else again == 0
    for one, other in zip(found, run(call), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
@each_batch
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pieces_are_the_definition_on_a_gpu(batch: Batch, scheme: str):
    """Twice, by the bit: whichever block is the last to be done adds them."""
    skip_without(handler.NAME, "gpu")
    _check_scheme("cuda", batch, scheme)


@pytest.mark.parametrize("name", ["mqa_odd", "window_odd"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_cpu_agrees_on_the_same_batches(name: str, scheme: str):
    """It cuts nothing; but what is compared above is right."""
    skip_without(handler.NAME, "cpu")
    _check_scheme("cpu", BATCHES[name], scheme)


@pytest.mark.usefixtures("on_h200")
@each_batch
def test_long_rows_are_cut(batch: Batch):
    plan = batch.plan()
    assert tuple(_pieces(plan, row) for row in batch.long_rows) == batch.pieces


@pytest.mark.usefixtures("on_h200")
@each_batch
def test_a_piece_that_is_lost_is_noticed(batch: Batch):
    """Or the comparison would show nothing; a tile of the plan is a page here."""
    call, plan = batch.call(), batch.plan()
    row = int(batch.long_rows[-1])
    lost = max(
        (item for item in plan.items if item.row == row), key=lambda item: item.piece
    )
    table = call.pages.page_table.at[row, lost.first : lost.last].set(ABSENT)
    rows = batch.long_rows[-1:]
    whole, _ = _reference(_only(call, rows))
    part, _ = _reference(_only(with_pages(call, table), rows))
    limit = tolerance(whole.dtype, reduction=batch.lengths[row])
    assert relative_error(part, whole) > 2 * limit


# --- Launch configs -------------------------------------------------------------------

FEW = Batch((40, 3001, 0, 700), LLAMA)


def _launch_configs() -> tuple[config.LaunchConfig, ...]:
    """Every block and cluster, with as many clusters as an H200 runs, and with few."""
    every = tuple(config.candidates(config.Sizes(4, 8, 3008)))
    few = tuple(dataclasses.replace(one, slots=12) for one in every[1::2])
    return tuple(dict.fromkeys((*every, *few)))


@pytest.mark.usefixtures("on_h200")
def test_every_launch_config_cuts_the_longest_row():
    found = {_pieces(FEW.plan(one), 1) for one in _launch_configs()}
    assert min(found) > 1 and max(found) >= 8


@pytest.mark.gpu
def test_every_launch_config_adds_the_same_pieces(monkeypatch: pytest.MonkeyPatch):
    skip_without(handler.NAME, "gpu")
    call = FEW.call()
    for one in _launch_configs():
        monkeypatch.setattr(config, "heuristic", lambda _, one=one: one)
        _check(_run("cuda")(call), call, [np.arange(len(FEW.lengths))])


@pytest.mark.gpu
def test_a_cut_row_has_no_more_tokens_than_its_table():
    skip_without(handler.NAME, "gpu")
    full = dataclasses.replace(FEW, lengths=(40, 3008, 0, 700)).call()
    longer = with_pages(full, lengths=full.pages.lengths.at[1].set(2**31 - 1))
    run = _run("cuda")
    found = run(longer)
    _check(found, full, [np.arange(4)])
    for one, other in zip(found, run(full), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
