"""Randomness of a batch: seeds as keys, and rows that do not draw."""

from jax import random

from fdjax.generate.params import SamplingParams
from fdjax.generate.randomness import init_randomness


def test_keys_hold_all_64_bits_of_the_seed():
    params = [SamplingParams(seed=2**62 + 5), SamplingParams()]
    keys = init_randomness(params, [1, 2**64 - 2]).keys
    assert keys.tolist() == [[2**30, 5], [2**32 - 1, 2**32 - 2]]
    five = init_randomness([SamplingParams(seed=5)], [0])
    assert random.key_data(random.key(5)).tolist() == five.keys[0].tolist()


def test_greedy_rows_have_temperature_zero():
    params = [SamplingParams(temperature=t) for t in (0, 1e-6, 0.5)]
    assert init_randomness(params, [0, 0, 0]).temperature.tolist() == [0, 0, 0.5]
