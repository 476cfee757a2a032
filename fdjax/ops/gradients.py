"""Gradients of operations: those of their definitions, whoever serves the call."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.kernels.op import REFERENCE, Op


def differentiable[**P, R](
    op: Op[Any, Any], function: Callable[P, R]
) -> Callable[P, R]:
    """The same function, with derivatives in forward and in reverse mode.

    The result is that of whatever implementation serves the call, the derivative that
    of the definition, at the same arguments: its intermediate values are computed
    anew, as with `jax.checkpoint`.

    Args:
        op: what the function calls.
        function: its positional arguments are arrays, or pytrees of arrays or `None`;
            keywords are static, or `None`, or arrays that it is not derived by.
    """

    @functools.wraps(function)
    def derived(*args: P.args, **kwargs: P.kwargs) -> R:
        @jax.custom_jvp
        def run(args: Any) -> R:
            return function(*args, **kwargs)

        def definition(args: Any) -> R:
            with op.using(REFERENCE):
                return function(*args, **kwargs)

        @run.defjvp
        def _(primals: Any, tangents: Any) -> tuple[R, R]:  # pyright: ignore[reportUnusedFunction]  (registered)
            return run(*primals), jax.jvp(definition, primals, tangents)[1]

        return run(jax.tree.map(jnp.asarray, args))

    return derived
