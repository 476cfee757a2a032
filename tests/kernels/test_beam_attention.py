"""Attention of beams: as if each had a sequence of its own, in one piece."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.beam_attention import BeamView, beam_attention
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.paged.definition import attend
from tests.support.numerics import assert_close

PAGE, HEADS, KV_HEADS, SIZE = 4, 6, 2, 8
GROUPS, WIDTH, LIMIT = 2, 3, 8
PROMPTS, RESPONSES = np.array([7, 4]), np.array([6, 1])


def spec_of(name: str) -> ScoreSpec:
    slopes = sinks = soft_cap = window = None
    match name:
        case "alibi":
            slopes = jnp.linspace(0.1, 0.6, HEADS)
        case "sinks":
            sinks = jnp.linspace(-1, 2, HEADS)
        case "soft_cap":
            soft_cap = 3.0
        case "window":
            window = 5
        case _:
            pass
    return ScoreSpec(slopes, 0.3, soft_cap, window, sinks)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def history(seed: int = 0) -> np.ndarray:
    """Origins as reorderings leave them: `new[:t] = old[parents, :t]; new[t] = b`."""
    rng = np.random.default_rng(seed)
    origins = np.zeros((GROUPS, WIDTH, LIMIT), np.int32)
    for group, steps in enumerate(RESPONSES):
        for step in range(steps):
            if step:
                origins[group] = origins[group, rng.integers(WIDTH, size=WIDTH)]
            origins[group, :, step] = range(WIDTH)
    return origins


@pytest.mark.parametrize("name", ["plain", "alibi", "sinks", "soft_cap", "window"])
def test_equals_attention_over_each_beams_sequence(name: str):
    spec = spec_of(name)
    pages = normal(1, 32, 1, 2, PAGE, KV_HEADS, SIZE)
    pages[[3, 9]] = np.nan  # of others, or of nobody
    free = [page for page in range(32) if page not in (3, 9)]
    prompt_table = np.full((GROUPS, 3), 99, np.int32)
    own = np.full((GROUPS, WIDTH, 2), 99, np.int32)
    for group in range(GROUPS):
        for place in range(-(-int(PROMPTS[group]) // PAGE)):
            prompt_table[group, place] = free.pop(5)
        for beam in range(WIDTH):
            for place in range(-(-int(RESPONSES[group]) // PAGE)):
                own[group, beam, place] = free.pop(2)
    origins = history()
    q = normal(2, GROUPS * WIDTH, HEADS, SIZE)
    attention = functools.partial(
        beam_attention, scale=spec.scale, soft_cap=spec.soft_cap, window=spec.window
    )
    found = jax.jit(attention)(
        jnp.asarray(q),
        KVCache.page_major(jnp.asarray(pages)).layer(0),
        PageView.decoding(
            jnp.asarray(own.reshape(GROUPS * WIDTH, -1)),
            jnp.asarray(np.repeat(RESPONSES, WIDTH).astype(np.int32)),
        ),
        BeamView(
            jnp.asarray(prompt_table),
            jnp.asarray(PROMPTS.astype(np.int32)),
            jnp.asarray(origins.reshape(GROUPS * WIDTH, -1)),
        ),
        spec.slopes,
        spec.sinks,
    )
    attend_one = jax.jit(attend)
    for row in range(GROUPS * WIDTH):
        group, beam = divmod(row, WIDTH)
        places = [
            (prompt_table[group, at // PAGE], at % PAGE) for at in range(PROMPTS[group])
        ]
        places += [
            (own[group, origins[group, beam, at], at // PAGE], at % PAGE)
            for at in range(RESPONSES[group])
        ]
        keys, values = (
            jnp.stack([pages[page, 0, half, slot] for page, slot in places])[None]
            for half in (0, 1)
        )
        query, last = jnp.asarray(q)[None, None, row], jnp.full((1, 1), len(places) - 1)
        held = jnp.ones((1, len(places)), bool)
        one = attend_one(query, keys, values, last, held, spec)
        assert_close(found[row], one[0, 0], reduction=SIZE * len(places))


def test_operands_that_do_not_fit_are_refused():
    kv = KVCache.page_major(jnp.zeros((4, 1, 2, PAGE, KV_HEADS, SIZE))).layer(0)
    view = PageView.decoding(jnp.zeros((4, 1), jnp.int32), jnp.ones(4, jnp.int32))
    groups = jnp.ones(3, jnp.int32)
    beams = BeamView(jnp.zeros((3, 1), jnp.int32), groups, jnp.zeros((4, 4), jnp.int32))
    with pytest.raises(ValueError, match="4 queries, 4 rows of pages and 3 groups"):
        beam_attention(jnp.zeros((4, HEADS, SIZE)), kv, view, beams, scale=1.0)
