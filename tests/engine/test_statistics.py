"""What an engine shows of itself while it works, and who waits for it: nobody."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from fdjax import UnifiedMax
from fdjax.engine.engine import Engine
from fdjax.engine.limits import QueueLimits
from fdjax.engine.runs import Runs
from fdjax.engine.statistics import SoftmaxWatch
from fdjax.errors import RequestError
from fdjax.generate.softmax_counts import SoftmaxCounts, SoftmaxStatistics
from fdjax.models import random_weights
from tests.support.engines import GREEDY, run, shallow_model, tiny_engine

NONE_FITS = UnifiedMax(-100.0, -60.0, 60.0)  # every score of this model is above -40
PROMPT = list(range(1, 18))  # two pages and a token


def counts(rows: int, recomputed: list[int]) -> SoftmaxCounts:
    layers = jnp.array([[count, 0] for count in recomputed], jnp.uint32)
    return SoftmaxCounts(jnp.array([rows, 0], jnp.uint32), layers)


@pytest.fixture(scope="module")
def narrow() -> Engine:
    """Two rows and four pages; one layer, none of whose scores fits the bounds."""
    model = shallow_model()
    config = dataclasses.replace(model.config, unified=NONE_FITS)
    weights = random_weights(config, dtype=jnp.float32, seed=0)
    return tiny_engine(weights, max_num_seqs=2, num_pages=4)


def test_what_runs_waits_and_is_held(narrow: Engine):
    sequences = [narrow.add(narrow.request(0, PROMPT, GREEDY)) for _ in range(2)]
    assert narrow.statistics().num_waiting == 2
    narrow.step()
    now = narrow.statistics()
    # The second waits for the pages that the first computes.
    assert (now.num_running, now.num_waiting, now.num_held_pages) == (1, 1, 3)
    assert (now.page_size, now.num_pages) == (8, 4)
    admitted = sequences[0].admitted_s
    assert admitted is not None and sequences[1].admitted_s is None
    while narrow.has_work:
        narrow.step()
    assert sequences[0].admitted_s == admitted < (sequences[1].admitted_s or 0.0)
    end = narrow.statistics()
    assert (end.num_running, end.num_waiting, end.num_held_pages) == (0, 0, 0)
    assert end.num_queried_tokens == 2 * len(PROMPT)
    assert end.num_cached_tokens == 16


def test_an_idle_engine_shows_all_of_the_softmax(narrow: Engine):
    for _ in range(2):  # the second within the second after the first copy
        run(narrow, [PROMPT])
    wanted = narrow.softmax_statistics()  # waits for what was launched ahead
    seen = copied(narrow._softmax)
    assert seen == wanted
    assert seen.rate == 1.0


def test_a_request_that_is_refused_leaves_none_behind(
    narrow: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(narrow, "limits", QueueLimits(requests=1))
    requests = [narrow.request(index, [5], GREEDY) for index in range(2)]
    with pytest.raises(RequestError, match="asks for 2 requests to wait together"):
        Runs(narrow).add(requests)
    assert not narrow.has_work


def test_preemptions_are_counted(narrow: Engine):
    before = narrow.statistics().num_preemptions
    run(narrow, [PROMPT[:8], PROMPT[1:8]], dataclasses.replace(GREEDY, max_tokens=17))
    assert narrow.statistics().num_preemptions > before


def copied(watch: SoftmaxWatch) -> SoftmaxStatistics:
    """What it reads once the copy that is under way is there."""
    jax.block_until_ready(watch._copy)
    return watch.read()


def test_copies_are_made_once_a_second_or_at_once():
    watch = SoftmaxWatch(num_heads=4, num_layers=2)
    assert watch.read() == SoftmaxStatistics(0, (0, 0))
    watch.look(counts(1, [0, 1]), at_once=False)
    watch.look(counts(2, [0, 2]), at_once=False)
    assert copied(watch) == SoftmaxStatistics(4, (0, 1)), "the second comes too early"
    watch.look(counts(3, [0, 3]), at_once=True)
    assert copied(watch) == SoftmaxStatistics(12, (0, 3))
    assert watch.read() == SoftmaxStatistics(12, (0, 3))


def test_what_is_copied_may_be_donated():
    watch = SoftmaxWatch(num_heads=4, num_layers=2)
    donated = counts(3, [1, 2])
    watch.look(donated, at_once=True)
    jax.tree.map(lambda leaf: leaf.delete(), donated)
    assert copied(watch) == SoftmaxStatistics(12, (1, 2))


def test_copies_that_a_failed_device_lost_are_given_up():
    watch = SoftmaxWatch(num_heads=4, num_layers=2)
    watch.look(counts(1, [0, 1]), at_once=True)
    assert watch._copy is not None
    jax.tree.map(lambda leaf: leaf.delete(), watch._copy)
    assert watch.read() == SoftmaxStatistics(0, (0, 0))
