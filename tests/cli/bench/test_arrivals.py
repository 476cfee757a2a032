"""When requests come: all at once, Poisson, scaled."""

import itertools

import numpy as np
import pytest

from fdjax.cli.bench.arrivals import Arrival, alike, poisson, random_prompts, scaled


def random() -> np.random.Generator:
    return np.random.default_rng(5)


def test_alike_requests_come_at_once():
    assert alike(2, input_tokens=3, output_tokens=4) == [Arrival(0.0, 3, 4)] * 2


def test_poisson_arrivals_have_exponential_gaps():
    sizes = [Arrival(9.0, i + 1, i + 2) for i in range(4000)]
    arrivals = poisson(sizes, random(), rate=20.0)
    times = [one.at_s for one in arrivals]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0
    assert min(gaps) >= 0
    assert np.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert [one.input_tokens for one in arrivals] == [i + 1 for i in range(4000)]
    assert [one.output_tokens for one in arrivals] == [i + 2 for i in range(4000)]


def test_a_seed_repeats_poisson_arrivals():
    sizes = alike(5, input_tokens=1, output_tokens=1)
    first, again = (poisson(sizes, random(), rate=3.0) for _ in "ab")
    assert first == again


def test_a_trace_can_be_scaled():
    arrivals = [Arrival(0.0, 100, 3), Arrival(6.0, 7, 90)]
    assert scaled(arrivals, speed=2.0, length_scale=0.1) == [
        Arrival(0.0, 10, 1),
        Arrival(3.0, 1, 9),
    ]
    assert scaled(arrivals, speed=1.0, length_scale=1.0) == arrivals


def test_prompts_are_drawn_from_the_whole_vocabulary():
    prompts = random_prompts([40, 3], random(), vocab_size=4)
    assert list(map(len, prompts)) == [40, 3]
    assert set(prompts[0]) == {0, 1, 2, 3}
    assert all(type(token) is int for token in prompts[1])
