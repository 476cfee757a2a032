"""The one rule of tolerance for comparing arrays."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def tolerance(dtype: jax.typing.DTypeLike, *, reduction: int) -> float:
    """The largest relative error allowed of a result of `dtype`.

    Rounding errors of a sum of `reduction` terms grow as its square root; a factor of
    four leaves room for the order of summation.

    Args:
        dtype: the type the result was rounded to.
        reduction: terms of the longest sum behind one element.
    """
    rounding = float(jnp.finfo(dtype).eps)
    accumulation = float(np.finfo(np.float32).eps) * math.sqrt(reduction)
    return 4 * max(rounding, accumulation)


def relative_error(
    actual: jax.typing.ArrayLike, expected: jax.typing.ArrayLike
) -> float:
    """`max |actual - expected| / max |expected|`; NaN counts as infinite."""
    a = np.asarray(actual).astype(np.float64)
    e = np.asarray(expected).astype(np.float64)
    assert a.shape == e.shape, f"shapes {a.shape} and {e.shape}"
    if a.size == 0:
        return 0.0
    error = float(np.max(np.abs(a - e)) / max(float(np.max(np.abs(e))), 1e-30))
    return math.inf if math.isnan(error) else error


def assert_close(
    actual: jax.Array, expected: jax.typing.ArrayLike, *, reduction: int
) -> None:
    """Asserts that `actual` equals `expected` up to the rounding of its dtype."""
    limit = tolerance(actual.dtype, reduction=reduction)
    error = relative_error(actual, expected)
    assert error <= limit, f"relative error {error:.3g} exceeds {limit:.3g}"
