"""Beside searches, too, the host waits for no step that it has just launched."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from fdjax.engine import pipeline
from fdjax.engine.engine import Engine
from fdjax.generate.beam_params import BeamSearchParams
from tests.support.engines import GREEDY, PROMPTS, shallow_model, tiny_engine
from tests.support.host_reads import no_host_reads
from tests.support.matchers import Places
from tests.support.soak import is_idle

SEARCH = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
DIVERSE = dataclasses.replace(
    SEARCH,
    beam_width=4,
    n=4,
    num_beam_groups=2,
    diversity_penalty=1.0,
    logprobs=1,
    stream_best=True,
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine(shallow_model(), max_num_seqs=16)


def search(engine: Engine) -> None:
    """Alike ones, which share calls, beside an ordinary row."""
    _search(engine, lambda prompt: engine.request(0, prompt, SEARCH))


def search_diverse(engine: Engine) -> None:
    """Those go alone; what was found so far is told with each step."""
    _search(engine, lambda prompt: engine.request(0, prompt, DIVERSE))


def search_judged(engine: Engine) -> None:
    """The matcher waits for candidates, and no step does."""
    places = [range(10 * place, 10 * place + 10) for place in range(1, 6)]
    form = Places(places, engine.config.embedding.vocab_size)
    _search(engine, lambda prompt: engine.request(0, prompt, SEARCH, form))


def _search(engine: Engine, request: Callable[[list[int]], Any]) -> None:
    for prompt in PROMPTS:
        engine.add(request(prompt))
    engine.add(engine.request(0, PROMPTS[1], GREEDY))
    while engine.has_work:
        engine.step()
    assert is_idle(engine)


@pytest.mark.parametrize("searches", [search, search_diverse, search_judged])
def test_nothing_is_traced_or_read_unasked(
    engine: Engine, searches: Callable[[Engine], None]
):
    searches(engine)
    with jax.no_tracing(True), no_host_reads():
        searches(engine)


def test_a_launch_of_searches_that_waits_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    launch = engine.executor.search

    def waiting(*work: Any) -> Any:
        launched = launch(*work)
        np.asarray(jax.tree.leaves(launched.arrays)[0])
        return launched

    monkeypatch.setattr(engine.executor, "search", waiting)
    with no_host_reads(), pytest.raises(AssertionError, match="the host waits"):
        search(engine)
    engine.reset()


def test_a_search_that_is_not_ahead_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    engine.add(engine.request(0, PROMPTS[0], SEARCH))
    with no_host_reads():
        engine.step()  # of the prompt; the next one's only launch is of the search
        monkeypatch.setattr(pipeline, "LAUNCHES_AHEAD", 0)
        with pytest.raises(AssertionError, match="the step it is of"):
            engine.step()
    engine.reset()
