"""What the public operations say of wrong arguments: their names, numbers, remedies."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.attention_states import KeyRange
from fdjax.kernels.paged import (
    ALL_TOKENS,
    KVCache,
    KVLayer,
    PageView,
    check_window,
    int32_of,
    integers,
    is_float32,
    kind,
)
from fdjax.kernels.paged.view import NO_PAGE
from fdjax.notation import Array

_OPERATIONS = re.compile(
    "^(add_norm|attention|attention_states|decode_attention|draw|matmul"
    "|prefill_attention|rope_kv_write): "
)
"""How messages of what serves public operations begin."""


def named[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose errors name it in place of the operation behind it."""

    @functools.wraps(function)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            text = str(error.args[0]) if len(error.args) == 1 else ""
            if _OPERATIONS.match(text):
                error.args = (_OPERATIONS.sub(f"{function.__name__}: ", text),)
            raise

    return renamed


def array_of(operation: str, name: str, value: Any, *axes: str) -> Array:
    """An argument as an array of JAX.

    Args:
        operation: its name.
        name: of the argument.
        value: what the caller gave.
        axes: how messages write the axes that it must have; none: any.

    Raises:
        TypeError: it is no array, or one of typed keys.
        ValueError: it has another number of axes.
    """
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"{operation}: {name} is {kind(value)}; give an array, by jnp.asarray"
        )
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"{operation}: {name} is an array of typed keys; give their data, "
            "jax.random.key_data of it"
        )
    if axes and value.ndim != len(axes):
        raise ValueError(
            f"{operation}: {name} is {value.shape}; expected [{', '.join(axes)}]"
        )
    return jnp.asarray(value)


def integers_of(operation: str, name: str, value: Any, *axes: str) -> Array:
    """An argument of whole numbers as an array of JAX, int32.

    Args:
        operation: its name.
        name: of the argument.
        value: what the caller gave: of any type of whole numbers.
        axes: how messages write the axes that it must have; none: any.

    Raises:
        TypeError: it is no array, or one of typed keys.
        ValueError: it has another number of axes, or other numbers.
    """
    array = array_of(operation, name, value, *axes)
    if value.dtype == jnp.int32:
        return array
    return jnp.asarray(int32_of(operation, name, value))


def refuse_traced(
    operation: str, *, remedy: str = "give a number", **values: Any
) -> None:
    """Raises `TypeError` where what a program is compiled for is traced, or many.

    Args:
        operation: its name.
        remedy: what to do instead.
        values: by name.
    """
    for name, value in values.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{operation}: {name} is traced; it must be static: jax.jit has "
                f'static_argnames=("{name}",) for it, or {remedy}'
            )
        if value is not None and getattr(value, "ndim", 0):
            raise TypeError(
                f"{operation}: {name} is an array of {value.shape}; {remedy}"
            )


def check_number(operation: str, name: str, value: Any) -> None:
    """Raises where a static argument is no finite number.

    Raises:
        TypeError: it is traced, or no number: a string of digits is none.
        ValueError: it is NaN, infinite, or too large for float32, in which it counts.
    """
    check_type_of_number(operation, name, value)
    if not is_float32(value):
        raise ValueError(
            f"{operation}: {name} is {value}; it must be finite in float32, give "
            "another number"
        )


def check_type_of_number(operation: str, name: str, value: Any) -> None:
    """Raises `TypeError` where a static argument is no number, or is traced."""
    refuse_traced(operation, **{name: value})
    try:
        # Of a complex number of numpy's, float() drops half.
        is_number = not (isinstance(value, str | bytes) or np.iscomplexobj(value))
        float(value if is_number else 0)
    except OverflowError:  # of a number, which is too large
        is_number = True
    except (TypeError, ValueError):
        is_number = False
    if not is_number:
        raise TypeError(f"{operation}: {name} is {kind(value)}; give a number")


def boolean(operation: str, name: str, value: Any) -> bool:
    """A static argument that is true or false.

    Raises:
        TypeError: it is something else, or traced: a string is true, whatever it says.
    """
    remedy = "give True or False"
    refuse_traced(operation, remedy=remedy, **{name: value})
    if not isinstance(value, bool) and getattr(value, "dtype", None) != np.bool_:
        raise TypeError(f"{operation}: {name} is {kind(value)}; {remedy}")
    return bool(value)


def window_of(operation: str, name: str, value: Any) -> int | None:
    """A window, which is no longer than any row; `None` is none.

    It is part of what a program is compiled for, which arrays cannot be.

    Raises:
        TypeError: it is no number, or traced.
        ValueError: it is no whole number, or below 1.
    """
    remedy = "give a Python int, which is static"
    refuse_traced(operation, remedy=remedy, **{name: value})
    if value is not None and not isinstance(value, int | float | np.number):
        raise TypeError(f"{operation}: {name} is {kind(value)}; {remedy}")
    check_window(operation, value, name)
    return None if value is None else min(int(value), ALL_TOKENS)


def floating_type(operation: str, name: str, value: Any) -> jnp.dtype:
    """A static argument that is a type of floating numbers.

    Raises:
        TypeError: it is no type.
        ValueError: it is one of other numbers.
    """
    remedy = "give a floating type, such as jnp.float32"
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        raise TypeError(
            f"{operation}: {name} is {value!r}, which is no type; {remedy}"
        ) from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{operation}: {name} is {dtype}; {remedy}")
    return dtype


def whole_number(operation: str, name: str, value: Any) -> int:
    """A static argument that counts something, 1 or more.

    Raises:
        TypeError: it is no whole number, or traced.
        ValueError: it is less than 1.
    """
    refuse_traced(operation, **{name: value})
    return integers.whole_number(operation, name, value, least=1)


def check_kind(operation: str, wanted: Any, **arrays: Array | None) -> None:
    """Raises `ValueError` where an array's dtype is not of a kind of numbers.

    Args:
        operation: its name.
        wanted: `jnp.floating`, `jnp.integer` or `jnp.number`.
        arrays: by name; `None` is of any kind.
    """
    for name, array in arrays.items():
        if array is not None and not jnp.issubdtype(array.dtype, wanted):
            raise ValueError(
                f"{operation}: {name} is {array.dtype}; cast it to a type that is "
                f"{wanted.__name__}"
            )


def check_real(operation: str, **arrays: Array | None) -> None:
    """Raises `ValueError` where an array's numbers are neither floating nor whole.

    Of complex ones a cast to float32 would drop half. Arguments as in `check_kind`.
    """
    for name, array in arrays.items():
        if array is not None and not jnp.issubdtype(array.dtype, jnp.integer):
            check_kind(operation, jnp.floating, **{name: array})


def check_words(operation: str, name: str, array: Any) -> None:
    """Raises `ValueError` where an array is of no words of bits, of 32 at most.

    Asked before it is an array of JAX, which may have no type that is wider.
    """
    check_kind(operation, jnp.unsignedinteger, **{name: array})
    bits = jnp.iinfo(array.dtype).bits
    if bits > 32:
        raise ValueError(
            f"{operation}: {name} is {array.dtype}; a word has 32 bits, not {bits}: "
            "give it as uint32, by .view(np.uint32) two words for each"
        )


def check_layer(operation: str, kv: Any) -> None:
    """Raises `TypeError` where a layer of a cache is something else."""
    if isinstance(kv, KVLayer):
        return
    remedy = (
        "one of its layers, kv.layer(0)"
        if isinstance(kv, KVCache)
        else "a layer of a cache, such as KVCache.page_major(array).layer(0)"
    )
    raise TypeError(f"{operation}: kv is {kind(kv)}; give {remedy}")


def check_range(operation: str, keys: Any) -> None:
    """Raises `TypeError` where a part of the keys is something else."""
    if not isinstance(keys, KeyRange):
        raise TypeError(
            f"{operation}: keys is {kind(keys)}; give a KeyRange(first, end)"
        )


def rows_of(operation: str, pages: Any) -> PageView:
    """The rows of a call, in whole numbers.

    A `PageView` that `jax.tree.map` has made may have any. A table of no columns has
    one of absent pages here: kernels count from one on.

    Raises:
        TypeError: they are no `PageView`.
        ValueError: their arrays are of no whole numbers.
    """
    if not isinstance(pages, PageView):
        raise TypeError(
            f"{operation}: pages is {kind(pages)}; give a PageView, such as "
            "PageView.decoding(page_table, lengths)"
        )
    names = ("page_table", "lengths", "starts", "firsts")
    held = {name: getattr(pages, name) for name in names}
    whole = {
        name: integers_of(operation, f"pages.{name}", array)
        for name, array in held.items()
        if array is not None
    }
    if not pages.width:
        whole["page_table"] = jnp.full((pages.num_rows, 1), NO_PAGE, jnp.int32)
    return dataclasses.replace(pages, **whole)
