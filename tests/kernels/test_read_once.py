"""Shared prefixes read once on a CPU, as their plan says, against the definition."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.decode_attention import reference
from tests.kernels.test_shared_prefix import PAGE, TREES, call_of
from tests.support import read_once
from tests.support.numerics import assert_close

_read_once = jax.jit(read_once.decode_attention)
SCORES: list[dict[str, Any]] = [{}, {"sinks": True}, {"soft_cap": 5.0}]


@pytest.mark.parametrize("scores", SCORES, ids=lambda scores: "+".join(scores) or "all")
@pytest.mark.parametrize("name", sorted(TREES))
def test_what_work_and_parts_say_is_the_definition(name: str, scores: dict[str, Any]):
    call = call_of(TREES[name], dtype=jnp.float32, heads=(4, 2, 16), **scores)
    actual, _ = _read_once(call)
    expected, _ = jax.jit(reference.decode_attention)(call)
    assert_close(actual, expected, reduction=64)


@pytest.mark.parametrize("field", ["tokens", "order", "work", "parts"])
def test_each_part_of_the_plan_is_needed(field: str):
    """The definition above reads all of it: what is wrong makes other results."""
    call = call_of(TREES["nested"], dtype=jnp.float32, heads=(4, 2, 16))
    prefixes = call.pages.prefixes
    assert prefixes is not None
    found = getattr(prefixes, field)
    wrong = {
        "tokens": lambda: found - PAGE,
        "order": lambda: jnp.roll(found, 1),
        "work": lambda: found.at[:, 0].set(jnp.roll(found[:, 0], 1)),
        "parts": lambda: found.at[..., 1].set(found[..., 1] - 1),
    }
    prefixes = dataclasses.replace(prefixes, **{field: wrong[field]()})
    pages = dataclasses.replace(call.pages, prefixes=prefixes)
    actual, _ = _read_once(dataclasses.replace(call, pages=pages))
    expected, _ = jax.jit(reference.decode_attention)(call)
    assert not np.allclose(actual, expected, atol=0.01)
