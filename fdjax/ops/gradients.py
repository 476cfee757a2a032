"""Gradients of operations: those of their definitions, whoever serves the call."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.kernels.op import REFERENCE, Op, batch_invariant, is_batch_invariant


def differentiable[**P, R](
    op: Op[Any, Any],
    function: Callable[P, R],
    derived_by: Callable[..., R] | None = None,
) -> Callable[P, R]:
    """The same function, with derivatives in forward and in reverse mode.

    The result is that of whatever implementation serves the call, the derivative that
    of the definition, at the same arguments: its intermediate values are computed
    anew, as with `jax.checkpoint`.

    Args:
        op: what the function calls.
        function: its positional arguments are arrays, or pytrees of arrays or `None`;
            keywords are static, or `None`, or arrays, or pytrees of arrays.
        derived_by: what the derivative is taken of; `None`: the same function.
    """

    @functools.wraps(function)
    def derived(*args: P.args, **kwargs: P.kwargs) -> R:
        plain: Callable[..., R] = function
        defined = derived_by or plain
        # What is traced must be an operand: a `custom_jvp` outlives the trace.
        arrays = {name: value for name, value in kwargs.items() if _has_arrays(value)}
        static = {name: value for name, value in kwargs.items() if name not in arrays}
        # Nor is the block that the call stands in there any more.
        invariant = is_batch_invariant()

        @jax.custom_jvp
        def run(args: Any, arrays: Any) -> R:
            with batch_invariant(invariant):
                return plain(*args, **arrays, **static)

        def definition(args: Any, arrays: Any) -> R:
            with batch_invariant(False), op.using(REFERENCE):
                return defined(*args, **arrays, **static)

        @run.defjvp
        def _(primals: Any, tangents: Any) -> tuple[R, R]:  # pyright: ignore[reportUnusedFunction]  (registered)
            return run(*primals), jax.jvp(definition, primals, tangents)[1]

        return run(*jax.tree.map(jnp.asarray, (args, arrays)))

    return derived


def _has_arrays(value: Any) -> bool:
    """Whether a keyword is no number: static ones may be 0-dimensional arrays."""
    return any(getattr(leaf, "ndim", 0) for leaf in jax.tree.leaves(value))
