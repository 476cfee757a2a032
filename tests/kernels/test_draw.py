"""`draw`: what it checks, and the kernel against the definition."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.draw import OP, Draw, cuda, draw, reference
from fdjax.kernels.draw.filters import kept
from fdjax.notation import Array, Bool, Float, Int32
from tests.support.handlers import skip_without
from tests.support.numerics import tolerance

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 50},
    "wide_top_k": {"top_k": 3000},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.02},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "wide": {"top_k": 20_000, "top_p": 0.99, "min_p": 1e-6},
    "narrow": {"top_k": 1, "top_p": 1e-30, "min_p": 1.0},
}
SPREADS = {"flat": 0.5, "normal": 2.0, "peaked": 8.0}


def _call(
    num_rows: int,
    vocab_size: int,
    *,
    seed: int = 0,
    spread: float = 2.0,
    temperature: float = 1.0,
    **filters: float,
) -> Draw:
    """Random rows, every one with the same filters, each with its own key."""
    random = np.random.default_rng(seed)
    dtypes = {"top_k": jnp.int32, "top_p": jnp.float32, "min_p": jnp.float32}
    rows: dict[str, Any] = {
        name: jnp.full(num_rows, filters[name], dtype) if name in filters else None
        for name, dtype in dtypes.items()
    }
    logits = spread * random.standard_normal((num_rows, vocab_size), np.float32)
    return Draw(
        jnp.asarray(logits),
        jnp.asarray(random.integers(0, 2**32, (num_rows, 2), np.uint32)),
        jnp.asarray(random.integers(0, 1000, num_rows, np.int32)),
        jnp.full(num_rows, temperature, jnp.float32),
        **rows,
    )


def _greedy(call: Draw) -> Draw:
    return Draw(call.logits, None, None, None, None, None, None)


# --- What is checked ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["keys", "steps", "temperature", "top_k", "top_p", "min_p"]
)
def test_an_argument_of_another_size_is_named(name: str):
    call = dataclasses.replace(_call(2, 8, **FILTERS["all"]), **{name: jnp.ones(3)})
    message = rf"draw: {name} has shape \(3,\), logits have \(2, 8\)"
    with pytest.raises(ValueError, match=message):
        draw(*jax.tree.leaves(call))


def test_what_a_draw_lacks_is_named():
    call = _call(2, 8)
    with pytest.raises(ValueError, match=r"\['steps', 'temperature'\] is absent"):
        draw(call.logits, call.keys)
    with pytest.raises(ValueError, match="'keys', 'steps', 'temperature'"):
        draw(call.logits, top_p=jnp.ones(2))
    with pytest.raises(ValueError, match="0 tokens; they must have 1 or more"):
        draw(jnp.zeros((2, 0)))


@pytest.mark.usefixtures("on_h200")
def test_what_the_kernel_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch):
    call = _call(2, 8)
    assert OP.refuse("cuda", call) is None
    half = dataclasses.replace(call, logits=call.logits.astype(jnp.bfloat16))
    assert "logits are bfloat16" in str(OP.refuse("cuda", half))
    large = dataclasses.replace(call, logits=jnp.zeros((1, cuda.MAX_VOCAB + 1)))
    assert f"{cuda.MAX_VOCAB + 1} tokens" in str(OP.refuse("cuda", large))
    with jax.threefry_partitionable(False):
        assert "threefry" in str(OP.refuse("cuda", call))
        assert OP.refuse("cuda", _greedy(call)) is None
    monkeypatch.setattr(cuda.ffi, "refuse_below_sm90", lambda: "needs sm_90")
    assert OP.refuse("cuda", call) == "needs sm_90"


def test_rows_of_temperature_zero_are_greedy():
    call = dataclasses.replace(
        _call(4, 50, **FILTERS["all"]), temperature=jnp.array([0.0, 1.0, 0.0, 5.0])
    )
    tokens = np.asarray(OP(call))
    assert tokens[::2].tolist() == np.asarray(OP(_greedy(call)))[::2].tolist()
    assert not np.array_equal(tokens, np.asarray(OP(_greedy(call))))


# --- The kernel -----------------------------------------------------------------------


class Judgement(NamedTuple):
    """What the definition says of each row's token.

    Attributes:
        expected: the definition's own token.
        is_kept: the filters keep the token, if their cutoff rounds up.
        missing: the score that it lacks to the best of the tokens that the filters
            keep, if their cutoff rounds down.
        size: the largest number of which its score is the difference.
    """

    expected: Int32[Array, " B"]
    is_kept: Bool[Array, " B"]
    missing: Float[Array, " B"]
    size: Float[Array, " B"]


@jax.jit
def _judge(call: Draw, tokens: Int32[Array, " B"]) -> Judgement:
    """Cutoffs are made of sums and quotients, and scores of logarithms: they round."""
    assert call.temperature is not None
    filters = call.top_k, call.top_p, call.min_p
    slack = tolerance(jnp.float32, reduction=call.logits.shape[-1])
    rounding = tolerance(jnp.float32, reduction=1)
    temperature = jnp.where(call.temperature == 0, 1.0, call.temperature)[:, None]
    gaps = (jnp.max(call.logits, axis=-1, keepdims=True) - call.logits) / temperature

    def kept_within(sign: float) -> Bool[Array, "B V"]:
        top_k, top_p, min_p = filters
        assert top_p is not None
        assert min_p is not None
        top_p = jnp.minimum(top_p * (1 + sign * slack), 1)
        min_p = jnp.minimum(min_p * (1 - sign * slack), 1)
        keep = kept(gaps, top_k, top_p, min_p)
        furthest = jnp.max(jnp.where(keep, gaps, 0), axis=-1, keepdims=True)
        return (gaps <= furthest * (1 + sign * rounding)) | (gaps == 0)

    def of_token(x: Array) -> Array:
        return jnp.take_along_axis(x, tokens[:, None], axis=-1)[:, 0]

    keeps_all = dataclasses.replace(call, top_k=None, top_p=None, min_p=None)
    scores = reference.scores(keeps_all)
    best = jnp.max(jnp.where(kept_within(-1), scores, -jnp.inf), axis=-1)
    return Judgement(
        reference.draw(call),
        of_token(kept_within(1)),
        best - of_token(scores),
        23 + of_token(gaps),  # no noise is larger
    )


def _check(call: Draw, tokens: np.ndarray) -> np.ndarray:
    """The token is kept, and its score the largest one, each up to rounding.

    Returns:
        The rows where it is not the definition's own.
    """
    # With all filters there is one program for each shape.
    num_rows = len(tokens)
    neutral = Draw(
        call.logits,
        call.keys,
        call.steps,
        call.temperature,
        jnp.zeros(num_rows, jnp.int32) if call.top_k is None else call.top_k,
        jnp.ones(num_rows) if call.top_p is None else call.top_p,
        jnp.zeros(num_rows) if call.min_p is None else call.min_p,
    )
    said = _judge(neutral, jnp.asarray(tokens))
    greedy = np.asarray(call.temperature) == 0
    others = np.flatnonzero(tokens != np.asarray(said.expected))
    assert not np.any(greedy[others])
    assert np.all(np.asarray(said.is_kept) | greedy)
    missing, size = np.asarray(said.missing), np.asarray(said.size)
    enough = missing <= tolerance(jnp.float32, reduction=1) * size
    assert np.all(enough | greedy), (missing, size)
    return others


def _cuda(call: Draw) -> np.ndarray:
    skip_without(cuda.NAME, "gpu")
    with OP.using("cuda"):
        return np.asarray(jax.jit(OP)(call))


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("num_rows", "vocab_size"),
    [(1, 1), (3, 7), (64, 1000), (3, 4097), (3, 32_000), (64, 128_256), (1, 151_936)],
)
def test_the_kernel_agrees_with_the_definition(
    num_rows: int, vocab_size: int, spread: str, filters: str
):
    call = _call(num_rows, vocab_size, spread=SPREADS[spread], **FILTERS[filters])
    assert len(_check(call, _cuda(call))) <= num_rows // 20


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("temperature", [1e-5, 0.02, 0.7, 1.5, 100.0])
def test_the_kernel_agrees_at_every_temperature(temperature: float):
    for filters in FILTERS.values():
        call = _call(5, 32_003, temperature=temperature, **filters)
        _check(call, _cuda(call))


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("vocab_size", [1, 5, 1001, 128_256, cuda.MAX_VOCAB])
def test_the_kernel_takes_the_first_of_the_highest(vocab_size: int):
    call = _greedy(_call(9, vocab_size))
    logits = call.logits.at[4].set(1.0).at[5].set(-jnp.inf).at[6, :3].set(50.0)
    logits = logits.at[7].set(-0.0).at[7, vocab_size // 2].set(0.0)
    call = dataclasses.replace(call, logits=logits)
    expected = np.argmax(np.asarray(logits), axis=-1)
    assert np.array_equal(_cuda(call), expected)
    assert expected[4:8].tolist() == [0, 0, 0, 0]


def _odd(logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Rows whose tokens tie, or cannot come."""
    logits = logits.at[0].set(3.0)  # all are equal
    logits = jnp.where(jnp.arange(len(logits))[:, None] == 1, jnp.round(logits), logits)
    logits = logits.at[2].set(-jnp.inf).at[2, 17].set(-4.0)  # one can come
    logits = logits.at[3, ::2].set(-jnp.inf)
    return logits.at[4, 100:].set(-jnp.inf)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab_size", [999, 128_257])
def test_the_kernel_agrees_on_ties_and_impossible_tokens(vocab_size: int, filters: str):
    call = _call(6, vocab_size, **FILTERS[filters])
    call = dataclasses.replace(call, logits=_odd(call.logits))
    tokens = _cuda(call)
    others = _check(call, tokens)
    assert np.all(np.isfinite(np.asarray(call.logits)[np.arange(6), tokens]))
    # Equal tokens are all kept, or none: the noise alone decides.
    assert 0 not in others


@pytest.mark.gpu
@pytest.mark.hopper
def test_rows_of_a_batch_do_not_know_of_each_other():
    """Greedy rows between, at any place, alone, and with filters of their own."""
    call = _call(24, 50_003, top_k=40, top_p=0.8, min_p=0.01)
    random = np.random.default_rng(5)
    call = dataclasses.replace(
        call,
        temperature=jnp.asarray(random.choice([0, 0.5, 1, 3], 24), jnp.float32),
        top_k=jnp.asarray(random.choice([0, 1, 30, 5000], 24), jnp.int32),
        top_p=jnp.asarray(random.choice([1, 0.99, 0.5], 24), jnp.float32),
        min_p=jnp.asarray(random.choice([0, 0.1, 1e-4], 24), jnp.float32),
    )
    together = _cuda(call)
    _check(call, together)
    order = jnp.asarray(random.permutation(24))
    moved = _cuda(jax.tree.map(lambda x: x[order], call))
    assert np.array_equal(moved, together[np.asarray(order)])
    for row in range(0, 24, 5):
        alone = _cuda(jax.tree.map(lambda x, row=row: x[row : row + 1], call))
        assert alone[0] == together[row]
    assert all(np.array_equal(_cuda(call), together) for _ in range(5))


@pytest.mark.gpu
@pytest.mark.hopper
def test_the_kernel_draws_from_the_distribution():
    call = _call(20_000, 16, spread=1.0, temperature=1.3)
    call = dataclasses.replace(call, logits=jnp.tile(call.logits[:1], (20_000, 1)))
    probabilities = np.asarray(jax.nn.softmax(call.logits[0] / 1.3), np.float64)
    counts = np.bincount(_cuda(call), minlength=16)
    mean = 20_000 * probabilities
    # 15 degrees of freedom: exceeded with a chance of 1e-6.
    assert np.sum((counts - mean) ** 2 / mean) < 56.5


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_the_kernel_gives_a_token_whatever_the_logits(value: float):
    for filters in FILTERS.values():
        call = _call(4, 5000, **filters)
        logits = call.logits.at[0].set(value).at[1, 77].set(value).at[2, ::3].set(value)
        tokens = _cuda(dataclasses.replace(call, logits=logits))
        assert np.all((tokens >= 0) & (tokens < 5000))
        assert np.all((tokens[3:] >= 0) & (tokens[3:] == _cuda(call)[3:]))
