"""The Pallas kernel of `decode_attention`: interpreted on a CPU, compiled on a GPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import Case, tagged
from fdjax.kernels.decode_attention import OP, UnifiedMax, cases, reference
from fdjax.kernels.decode_attention.pallas import Cut, attend_with_scores, call
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
