"""The Pallas kernel of `decode_attention`: interpreted on a CPU, compiled on a GPU."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import OP, UnifiedMax, cases, reference
from fdjax.kernels.decode_attention.pallas import Cut, ScoreFn, attend_with_scores, call
from fdjax.notation import Array
from tests.support.numerics import assert_close

CI = tagged(cases.CASES, "ci")
WIDE = UnifiedMax(0.0, -40.0, 40.0)
# Among the 200 scores of a head one is about 2.6 here: some heads leave these bounds.
NARROW = UnifiedMax(0.0, -40.0, 2.5)
SCHEMES = {"unified": WIDE, "synchronised": None, "some_recomputed": NARROW}


def small(**changes: Any) -> Case:
    """A call that is interpreted in seconds."""
    options: dict[str, Any] = {
        "rows": 2,
        "q_heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "tokens": 150,
    }
    return cases._case("small", **{**options, **changes})


def poisoned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same call, NaN in every slot that holds no token of a row."""
    q, kv, table, lengths, slopes = args
    held = np.zeros((kv.shape[0], kv.shape[3]), bool)
    for pages, length in zip(np.asarray(table), np.asarray(lengths), strict=True):
        for place in range(-(-int(length) // kv.shape[3])):
            held[pages[place], : int(length) - place * kv.shape[3]] = True
    nan = jnp.asarray(jnp.nan, kv.dtype)
    kv = jnp.where(jnp.asarray(held)[:, None, None, :, None, None], kv, nan)
    return q, kv, table, lengths, slopes


@pytest.fixture(autouse=True)
def no_races(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fails where the interpreter found a race: JAX 0.11 prints, later ones raise."""
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


def interpreted(
    args: tuple[Any, ...], cut: Cut, score: ScoreFn | None = None, **kwargs: Any
) -> tuple[Array, Array]:
    """The kernel on the CPU, which also looks for races."""
    q, kv, table, lengths, *parameters = args
    found = attend_with_scores(
        q,
        kv,
        table,
        lengths,
        *parameters,
        score=score,
        cut=cut,
        interpret=plgpu.InterpretGPUParams(detect_races=True),
        **kwargs,
    )
    return jax.block_until_ready(found)


def check(
    case: Case, cut: Cut, unified: UnifiedMax | None, *, seed: int = 0
) -> tuple[Array, Array]:
    """Asserts that the interpreted kernel is the definition; returns its results."""
    args = poisoned(cases.arguments(case, seed=seed))
    plain = {k: v for k, v in case.kwargs.items() if k != "soft_cap"}
    score, parameters = call.score_of(case.kwargs["soft_cap"], args[4])
    expected, counts = reference.decode_attention(*args, **case.kwargs, unified=unified)
    actual, recomputed = interpreted(
        (*args[:4], *parameters), cut, score, unified=unified, **plain
    )
    tokens = args[2].shape[1] * args[1].shape[3]
    assert_close(actual, expected, reduction=tokens)
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))
    return actual, recomputed


# --- Interpreted ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("splits", [1, 2])
def test_agrees_with_the_definition(scheme: str, splits: int):
    _, recomputed = check(small(), Cut(64, 2, splits), SCHEMES[scheme])
    if scheme == "some_recomputed":
        assert 0 < int(recomputed.sum()) < 16


@pytest.mark.parametrize(
    "changes",
    [
        {"q_heads": 2},
        {"q_heads": 6},  # groups of 3 are padded to 8
        {"q_heads": 16, "kv_heads": 1},
        {"q_heads": 4, "tokens": 48},  # two rows' queries in one block of 8
        {"head_dim": 128, "page_size": 32},
        {"page_size": 128, "tokens": 130, "tile": 128},
        {"window": 50},
        {"soft_cap": 2.0},
        {"alibi": True},
        {"alibi": True, "soft_cap": 2.0, "q_heads": 6},
        {"dtype": jnp.float16},
    ],
    ids="-".join,
)
def test_every_kind_of_call_agrees(changes: dict[str, Any]):
    changes = {"tokens": 80, **changes}
    tile = changes.pop("tile", 64)
    check(small(**changes), Cut(tile, 2, 1), NARROW, seed=1)


def test_lengths_around_a_page_and_a_tile():
    case = small(rows=8, q_heads=8, kv_heads=1)
    q, kv, table, _, _ = cases.arguments(case)
    pages = np.random.default_rng(0).permutation(kv.shape[0])[: table.size]
    table = jnp.asarray(pages.reshape(table.shape), jnp.int32)
    lengths = jnp.array([0, 1, 15, 16, 17, 64, 65, 150], jnp.int32)
    args = poisoned((q, kv, table, lengths, None))
    expected, _ = reference.decode_attention(
        *args, layer=1, scale=0.125, soft_cap=None, window=None
    )
    actual, _ = interpreted(args[:4], Cut(64, 2, 2), layer=1, scale=0.125)
    assert_close(actual, expected, reduction=150)
    assert not np.asarray(actual[0], np.float32).any()


def test_a_score_function_of_ones_own():
    """Each query head sees as many tokens as its own parameter says."""
    q, kv, table, lengths, _ = cases.arguments(small(rows=1, tokens=100))
    reach = jnp.array([1, 2, 5, 16, 17, 60, 99, 200], jnp.float32)

    def near(scores: Array, query: Array, keys: Array, reach: Array) -> Array:
        return jnp.where((query - keys).astype(jnp.float32) < reach, scores, -1e30)

    operands = (q, kv, table, lengths, reach)
    actual, _ = interpreted(operands, Cut(64, 2, 1), near, layer=1, scale=0.125)
    for head, window in enumerate(reach.astype(int).tolist()):
        expected, _ = reference.decode_attention(
            *operands[:4], None, layer=1, scale=0.125, soft_cap=None, window=window
        )
        assert_close(actual[:, head], expected[:, head], reduction=window)


# --- On a GPU -------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("case", CI, ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_agrees_with_the_definition_on_a_gpu(case: Case, scheme: str):
    structs: tuple[Any, ...] = case.args
    reason = OP.refuse("pallas", *structs, **case.kwargs)
    if reason is not None:
        pytest.skip(f"pallas: {reason}")
    args = poisoned(cases.arguments(case))
    kwargs = {**case.kwargs, "unified": SCHEMES[scheme]}
    expected, counts = reference.decode_attention(*args, **kwargs)
    actual, recomputed = jax.jit(functools.partial(call.run, **kwargs))(*args)
    assert_close(actual, expected, reduction=args[2].shape[1] * args[1].shape[3])
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("cut", [(64, 2, 1), (64, 6, 3), (128, 3, 1), (128, 2, 2)])
def test_every_cut_agrees_on_a_gpu(cut: tuple[int, int, int], scheme: str):
    case = next(c for c in CI if c.name == "llama3_8b")
    structs: tuple[Any, ...] = case.args
    reason = OP.refuse("pallas", *structs, **case.kwargs)
    if reason is not None:
        pytest.skip(f"pallas: {reason}")
    q, kv, table, lengths, _ = poisoned(cases.arguments(case))
    args = (q, kv, table, lengths)
    options = {"layer": case.kwargs["layer"], "scale": case.kwargs["scale"]}
    unified = SCHEMES[scheme]
    expected, counts = reference.decode_attention(
        *args, None, soft_cap=None, window=None, unified=unified, **options
    )
    actual, recomputed = jax.jit(
        functools.partial(attend_with_scores, cut=Cut(*cut), unified=unified, **options)
    )(*args)
    assert_close(actual, expected, reduction=200)
    np.testing.assert_array_equal(np.asarray(recomputed), np.asarray(counts))
