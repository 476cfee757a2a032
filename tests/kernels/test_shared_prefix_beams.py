"""`beam_attention` in CUDA: prompts are prefixes that the beams of a group share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.beam_attention import OP as BEAMS
from fdjax.kernels.beam_attention import BeamAttention, BeamView
from fdjax.kernels.beam_attention import cuda as beams_cuda
from fdjax.kernels.beam_attention import reference as beams_reference
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.paged import PageView, ScoreSpec
from fdjax.kernels.shared_prefix import plan_prompts
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close
from tests.support.slot_calls import OTHERS, Heads, cache_of, defined, normal

GROUPS, WIDTH = 3, 5
PROMPTS, RESPONSES = (1000, 33, 1), (70, 1, 16)


def beams_of(heads: Heads, dtype: Any, **scores: Any) -> BeamAttention:
    """Three groups of five beams that have followed one another, with NaN elsewhere."""
    random, rows = np.random.default_rng(3), GROUPS * WIDTH
    prompt_width, own_width, page_size = 64, 8, 16
    num_pages = GROUPS * prompt_width + rows * own_width + 1
    ids = random.permutation(num_pages - 1)
    prompts = ids[: GROUPS * prompt_width].reshape(GROUPS, -1)
    own = ids[GROUPS * prompt_width :].reshape(rows, -1)
    cache = cache_of(heads, dtype, pages=num_pages, page_size=page_size)
    array = cache.array.at[num_pages - 1].set(jnp.nan)
    origins = random.integers(0, WIDTH, (rows, own_width * page_size))
    table = np.where(np.arange(own_width) < 5, own, num_pages)  # the others are absent
    view = BeamView(
        jnp.asarray(prompts, jnp.int32),
        jnp.asarray(PROMPTS, jnp.int32),
        jnp.asarray(origins, jnp.int32),
        plan_prompts(
            PROMPTS,
            width=WIDTH,
            num_kv_heads=heads[1],
            group=heads[0] // heads[1],
        ),
    )
    lengths = jnp.asarray(np.repeat(RESPONSES, WIDTH), jnp.int32)
    pages = PageView.decoding(jnp.asarray(table, jnp.int32), lengths)
    spec = dataclasses.replace(ScoreSpec(None, 0.1, None, None), **scores)
    q = normal((rows, heads[0], heads[2]), dtype)
    return BeamAttention(q, cache.with_array(array).layer(1), pages, spec, view)


def test_no_prompt_is_left_out_of_the_plan():
    """Of as many groups as there are beams, in 128 queries of which few fit a tile."""
    prefixes = plan_prompts([40] * 64, width=2, num_kv_heads=8, group=4)
    assert np.asarray(prefixes.tokens).tolist() == [40] * 128
    parts = np.asarray(prefixes.parts)[0]
    assert (parts[:, 0] >= 0).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": 7}, "positions matter"),
        ({"slopes": jnp.ones(4)}, "positions matter"),
        ({}, None),
    ],
)
def test_beams_are_refused_where_positions_matter(change: Any, reason: str | None):
    call = beams_of((4, 2, 64), jnp.bfloat16, **change)
    refused = beams_cuda.refuse_arguments(call)
    assert refused is None if reason is None else reason in str(refused)
    assert beams_cuda.refuse_arguments(separate(call)) is None


def separate(call: BeamAttention) -> BeamAttention:
    """The same, of which nothing is planned for the prompts."""
    bare = dataclasses.replace(call.beams, prefixes=None)
    return dataclasses.replace(call, beams=bare)


SCORES: list[dict[str, Any]] = [{}, {"window": 7}, {"slopes": jnp.ones(4)}]


@pytest.mark.parametrize("scores", SCORES, ids=["plain", "window", "slopes"])
def test_beams_may_read_their_prompts_each(scores: dict[str, Any]):
    """What rows told by slot attend to is what beams attend to."""
    call = separate(beams_of((4, 2, 64), jnp.float32, **scores))
    with DECODE.using("reference"):
        actual, _ = jax.jit(lambda call: DECODE(beams_cuda.all_tokens(call)))(call)
    expected = jax.jit(beams_reference.beam_attention)(call)
    assert_close(actual, expected, reduction=64)


@pytest.mark.gpu
@pytest.mark.parametrize("scores", SCORES, ids=["plain", "window", "slopes"])
def test_the_kernel_follows_beams_by_slot(scores: dict[str, Any]):
    skip_without("decode_attention", "gpu")
    call = separate(beams_of((4, 2, 64), jnp.bfloat16, **scores))
    with BEAMS.using("cuda"):
        actual = jax.jit(BEAMS)(call)
    expected = defined(call, beams_reference.beam_attention)
    assert_close(actual, expected, reduction=64)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "dtype"), OTHERS)
def test_the_kernels_follow_beams(heads: Heads, dtype: Any):
    skip_without("shared_prefix", "gpu")
    call = beams_of(heads, dtype)
    with BEAMS.using("cuda"):
        actual = jax.jit(BEAMS)(call)
        again = jax.jit(BEAMS)(call)
    expected = defined(call, beams_reference.beam_attention)
    assert_close(actual, expected, reduction=64)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(again))
