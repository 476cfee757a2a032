"""The counter of recomputed rows: exact, read when asked, and in no one's way."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from fdjax import UnifiedMax
from fdjax.engine.engine import Engine
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.models import Decoder, load
from tests.support.engines import (
    FIXTURES,
    GREEDY,
    PROMPTS,
    run,
    tiny_engine,
    tiny_model,
)
from tests.support.host_reads import no_host_reads

WIDE = UnifiedMax(0.0, -60.0, 60.0)
NONE_FITS = UnifiedMax(-100.0, -60.0, 60.0)  # every score of this model is above -40


@functools.cache
def model_with(unified: UnifiedMax) -> Decoder:
    config = dataclasses.replace(tiny_model().config, unified=unified)
    return load(FIXTURES / "llama", dtype=jnp.float32, config=config)


@pytest.fixture(scope="module")
def narrow() -> Engine:
    return tiny_engine(model_with(NONE_FITS))


def tokens_of(prompt: list[int], max_tokens: int) -> int:
    """Tokens that attend to others; the last one sampled does not."""
    return len(prompt) + max_tokens - 1


def test_every_head_of_every_running_row_is_counted(narrow: Engine, engine: Engine):
    assert narrow.softmax_statistics() == SoftmaxStatistics(0, (0, 0, 0))
    assert run(narrow, PROMPTS) == run(engine, PROMPTS)
    heads, most = narrow.config.num_heads, GREEDY.max_tokens or 0
    seen = heads * sum(tokens_of(prompt, most) for prompt in PROMPTS)
    assert narrow.softmax_statistics() == SoftmaxStatistics(seen, (seen,) * 3)
    run(narrow, [PROMPTS[0], *PROMPTS, PROMPTS[0]])  # more than rows
    read = narrow.softmax_statistics()
    # Of prompts, what was not cached.
    steps = 5 * heads * (most - 1)
    assert seen + steps < read.query_heads <= seen + steps + 5 * heads * 11
    assert read.rate == 1.0


def test_rows_that_have_ended_do_not_count(engine: Engine):
    narrow = tiny_engine(model_with(NONE_FITS))
    params = [dataclasses.replace(GREEDY, max_tokens=n) for n in (2, 12, 5)]
    run(narrow, PROMPTS, params)
    heads = narrow.config.num_heads
    seen = sum(
        tokens_of(prompt, one.max_tokens or 0)
        for prompt, one in zip(PROMPTS, params, strict=True)
    )
    assert narrow.softmax_statistics().query_heads == heads * seen


def test_wide_bounds_hold_every_row(engine: Engine):
    wide = tiny_engine(model_with(WIDE))
    assert run(wide, PROMPTS) == run(engine, PROMPTS)
    read = wide.softmax_statistics()
    assert read.query_heads > 0
    assert read.recomputed == (0, 0, 0)


def test_the_synchronised_softmax_counts_nothing(engine: Engine):
    run(engine, PROMPTS)
    assert engine.softmax_statistics() == SoftmaxStatistics(0, (0, 0, 0))


def test_counting_traces_and_transfers_nothing():
    narrow = tiny_engine(model_with(NONE_FITS), max_num_seqs=2)
    narrow.warm_up([GREEDY])
    assert narrow.softmax_statistics().query_heads == 0, "warming up counts nothing"
    with jax.no_tracing(True), no_host_reads():
        run(narrow, PROMPTS)
        run(narrow, PROMPTS)
        read = narrow.softmax_statistics()
    assert read.query_heads > 0


def test_an_interrupt_loses_counts_but_no_more(
    narrow: Engine, monkeypatch: pytest.MonkeyPatch
):
    programs = narrow.executor.programs
    decode = programs.decode

    def interrupted(*arguments: object, **options: object) -> None:
        decode(*arguments, **options)  # pyright: ignore[reportArgumentType]  (passed on)
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(narrow, [PROMPTS[0]])
    monkeypatch.undo()
    run(narrow, [PROMPTS[0]])
    seen = narrow.config.num_heads * tokens_of(PROMPTS[0], GREEDY.max_tokens or 0)
    assert narrow.softmax_statistics().query_heads == seen
