"""The expected values of `test_beam_search.py`, computed live."""

import random

import pytest

from tests.support.beam_cases import cases, expected, run

pytestmark = pytest.mark.parity

pytest.importorskip("torch")


def test_the_expected_values_are_what_transformers_finds():
    from tests.support.hf_beams import search

    assert [search(case) for case in cases()] == expected()


def test_other_cases_are_found_alike():
    from tests.support.hf_beams import search

    seed = random.randrange(2**32)
    others = cases(40, seed=seed)
    assert run(others) == [search(case) for case in others], f"seed {seed}"
