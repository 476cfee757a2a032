"""What stands around attention in a layer, and behind the last one."""

import math
from typing import Any

import jax
import jax.core
import jax.custom_batching
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.add_norm import OP as ADD_NORM
from fdjax.kernels.add_norm import add_norm
from fdjax.kernels.draw import draw
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.matmul import matmul
from fdjax.kernels.paged import KVCache, KVLayer
from fdjax.kernels.rope_kv_write import OP as ROPE_KV_WRITE
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.kernels.weight import Dense
from fdjax.notation import Array, Float, Int32, UInt32
from fdjax.ops import calls
from fdjax.ops.gradients import differentiable

# As JAX's operations take them beside noise in float32.
_LOGITS = (jnp.float32, jnp.bfloat16, jnp.float16)
# Of what sampling is told: the highest number of each, and what to give.
_RANGES = {
    "top_k": (math.inf, "0, which is no limit, or more"),
    "temperature": (math.inf, "0, which takes the most likely token, or more"),
    "top_p": (1.0, "a number from 0 to 1, which is no limit"),
    "min_p": (1.0, "a number from 0, which is no limit, to 1"),
}


@calls.named
def rope_and_write(
    qkv: Float[Array, "T H D"],
    kv: KVLayer,
    positions: Int32[Array, " T"],
    slots: Int32[Array, " T"],
    frequencies: Float[Array, " R2"],
    *,
    interleaved: bool = False,
) -> tuple[Float[Array, "T Hq D"], KVCache]:
    """Rotates queries and keys, and writes keys and values into their pages.

    One of the nine operations of a layer in the Intel paper (section 3.1). Under
    `jax.vmap` it is refused: the cache would be copied for each element. Give all
    tokens to one call instead: rows share one cache, and have pages of their own.

    Args:
        qkv: heads in the order q, k, v, as one linear map makes them.
        kv: a layer of a cache. Donate the cache's array under `jax.jit`, and it is
            updated in place.
        positions: of each token in its sequence.
        slots: where each token goes, `page * Z + slot`, as `PageView.slots` says;
            negative ones write nothing, nor do those past the end of the cache.
        frequencies: `theta ** (-2 i / R)`, in radians a position; empty without RoPE.
        interleaved: pairs are (0, 1), (2, 3) and so on, instead of (i, i + R / 2).
            Static.

    Returns:
        The rotated queries and the cache.

    Raises:
        ValueError: shapes or dtypes do not fit together.
        TypeError: an argument is of another type, or what is static is traced.
        NotImplementedError: it is under `jax.vmap`.
    """
    name = "rope_and_write"
    interleaved = calls.boolean(name, "interleaved", interleaved)
    calls.check_layer(name, kv)
    qkv = calls.array_of(name, "qkv", qkv, "T", "H", "D")
    calls.check_kind(name, jnp.floating, qkv=qkv)
    positions = calls.integers_of(name, "positions", positions, "T")
    slots = calls.integers_of(name, "slots", slots, "T")
    frequencies = calls.array_of(name, "frequencies", frequencies, "R2")
    calls.check_kind(name, jnp.floating, frequencies=frequencies)
    return _rope_and_write(
        qkv, kv, positions, slots, frequencies, interleaved=interleaved
    )


@calls.named
def flat_gemm(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None = None,
    residual: Float[Array, "M N"] | None = None,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "M N"]:
    """Computes `x @ weight.T + bias + residual`, summed in float32.

    The kernel is chosen by M (FlashDecoding++, sections 4 and 5): those for few rows
    stream the weight once; for many rows it is the library's.

    Args:
        x: activations.
        weight: a row an output, as checkpoints hold them.
        bias: of each output, or `None`.
        residual: added to the result, or `None`.
        out_dtype: that of `x` by default. Static.

    Returns:
        A row of outputs for each row of `x`, in `out_dtype`; of float64, which JAX has
            only under `jax_enable_x64`, in float32 elsewhere.

    Raises:
        ValueError: shapes do not fit together, or a type is not floating.
        TypeError: an argument is no array, or `out_dtype` no type.
    """
    name = "flat_gemm"
    x = calls.array_of(name, "x", x, "M", "K")
    weight = calls.array_of(name, "weight", weight, "N", "K")
    if bias is not None:
        bias = calls.array_of(name, "bias", bias, "N")
    if residual is not None:
        residual = calls.array_of(name, "residual", residual, "M", "N")
    arrays = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    calls.check_kind(name, jnp.floating, **arrays)
    if out_dtype is not None:
        out_dtype = calls.floating_type(name, "out_dtype", out_dtype)
    return _flat_gemm(x, Dense(weight), bias, residual, out_dtype=out_dtype)


@calls.named
def rms_norm(
    x: Float[Array, "*T E"],
    scale: Float[Array, " E"],
    *,
    epsilon: float = 1e-6,
    scale_offset: float = 0.0,
) -> Float[Array, "*T E"]:
    """Computes `x / sqrt(mean(x^2) + epsilon) * (scale + scale_offset)` in float32.

    One kernel, where there is one (Intel paper, section 3.1).

    Args:
        x: normalised over its last axis.
        scale: of each element.
        epsilon: added to the mean. Static, as the next one: under `jax.jit` a number,
            or named in its `static_argnames`.
        scale_offset: added to the scale; Gemma has 1.

    Returns:
        As large as `x`, in its type.

    Raises:
        ValueError: `scale` is not as long as the last axis, a type is not floating, or
            a number is not finite, or `epsilon` below 0.
        TypeError: an argument is of another type, or what is static is traced.
    """
    name = "rms_norm"
    calls.check_number(name, "epsilon", epsilon)
    if epsilon < 0:
        raise ValueError(f"rms_norm: epsilon is {epsilon}; it must be 0 or more")
    calls.check_number(name, "scale_offset", scale_offset)
    x = calls.array_of(name, "x", x)
    scale = calls.array_of(name, "scale", scale, "E")
    calls.check_kind(name, jnp.floating, x=x, scale=scale)
    if not x.ndim:
        raise ValueError("rms_norm: x is (); expected an axis or more")
    normalised, _ = _add_norm(
        x, None, scale, None, epsilon=epsilon, scale_offset=scale_offset
    )
    return normalised


@calls.named
def sample(
    logits: Float[Array, "B V"],
    keys: UInt32[Array, "B 2"] | None = None,
    steps: Int32[Array, " B"] | None = None,
    temperature: Float[Array, " B"] | None = None,
    top_k: Int32[Array, " B"] | None = None,
    top_p: Float[Array, " B"] | None = None,
    min_p: Float[Array, " B"] | None = None,
) -> Int32[Array, " B"]:
    """Chooses one token for each row: the most likely one, or a draw.

    A row's token depends on the row's own arguments alone: the same in any batch. Draws
    are by Gumbel noise; token ids have no derivative. The kernel follows none of the
    papers that the other operations name.

    Args:
        logits: -inf is a token that cannot come; one at least must be finite. Those
            in float64 are rounded to float32, and those in 8 bits and less are taken
            as they are.
        keys: data of a threefry key for each row; without keys, steps and temperature
            the most likely token is taken.
        steps: how many tokens the row has drawn before.
        temperature: 0 or more; 0 takes the most likely token. Of this and the next
            three, what is NaN or out of range is refused where it is not traced, and
            means nothing where it is.
        top_k: draws among that many of the most likely; 0 is no limit.
        top_p: among the most likely that have this probability together, from 0 to 1;
            1 is no limit.
        min_p: among those that have this part of the highest probability, from 0 to 1;
            0 is no limit.

    Returns:
        Token ids.

    Raises:
        ValueError: an argument does not match the logits, lacks another, or is of
            other numbers, or out of range.
        TypeError: an argument is no array, or keys are typed.
    """
    name = "sample"
    logits = calls.array_of(name, "logits", logits, "B", "V")
    calls.check_kind(name, jnp.floating, logits=logits)
    if logits.dtype not in _LOGITS:
        logits = logits.astype(jnp.float32)
    arrays: dict[str, jax.Array | None] = {}
    for each, value, of_kind in (
        ("keys", keys, calls.array_of),
        ("steps", steps, calls.integers_of),
        ("temperature", temperature, calls.array_of),
        ("top_k", top_k, calls.integers_of),
        ("top_p", top_p, calls.array_of),
        ("min_p", min_p, calls.array_of),
    ):
        arrays[each] = None if value is None else of_kind(name, each, value)
    calls.check_kind(name, jnp.uint32, keys=arrays["keys"])
    floats = {each: arrays[each] for each in ("temperature", "top_p", "min_p")}
    calls.check_real(name, **floats)
    # Filters look at the bits of a float32.
    for each, value in floats.items():
        arrays[each] = None if value is None else value.astype(jnp.float32)
    for each, (highest, remedy) in _RANGES.items():
        _check_range(each, arrays[each], highest, remedy)
    return draw(logits, **arrays)


def _check_range(
    name: str, values: jax.Array | None, highest: float, remedy: str
) -> None:
    """What is traced has no values to look at yet."""
    if values is None or isinstance(values, jax.core.Tracer):
        return
    held = np.asarray(values)
    wrong = held[~((held >= 0) & (held <= highest))]
    if wrong.size:
        raise ValueError(f"sample: {name} is {wrong[0]} for a row; give {remedy}")


def _written(
    qkv: jax.Array,
    kv: KVLayer,
    positions: jax.Array,
    slots: jax.Array,
    frequencies: jax.Array,
    *,
    interleaved: bool,
) -> tuple[jax.Array, KVCache]:
    """As `rope_kv_write`, which under `jax.vmap` would copy the cache for each."""

    @jax.custom_batching.custom_vmap
    def write(*arrays: Any) -> tuple[jax.Array, KVCache]:
        return rope_kv_write(*arrays, interleaved=interleaved)

    @write.def_vmap
    def _(*_: Any) -> Any:  # pyright: ignore[reportUnusedFunction]  (registered)
        raise NotImplementedError(
            "rope_and_write: not under jax.vmap, which would copy the cache for each "
            "element; give all tokens to one call, with slots of their rows' own pages"
        )

    return write(qkv, kv, positions, slots, frequencies)


_rope_and_write = differentiable(ROPE_KV_WRITE, _written, rope_kv_write)
_flat_gemm = differentiable(MATMUL, matmul)
_add_norm = differentiable(ADD_NORM, add_norm)
