"""What stands around attention in a layer, and behind the last one."""

import jax

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
from fdjax.ops.gradients import differentiable


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
    `jax.vmap` kernels refuse it: a batch of caches would be copied. Share one cache
    among rows, whose pages differ.

    Args:
        qkv: heads in the order q, k, v, as one linear map makes them.
        kv: a layer of a cache. Donate the cache's array under `jax.jit`, and it is
            updated in place.
        positions: of each token in its sequence.
        slots: where each token goes, `page * Z + slot`, as `PageView.slots` says;
            negative ones write nothing.
        frequencies: `theta ** (-2 i / R)`, in radians a position; empty without RoPE.
        interleaved: pairs are (0, 1), (2, 3) and so on, instead of (i, i + R / 2).

    Returns:
        The rotated queries and the cache.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    return _rope_and_write(
        qkv, kv, positions, slots, frequencies, interleaved=interleaved
    )


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
        out_dtype: that of `x` by default.

    Raises:
        ValueError: shapes do not fit together.
    """
    return _flat_gemm(x, Dense(weight), bias, residual, out_dtype=out_dtype)


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
        epsilon: added to the mean.
        scale_offset: added to the scale; Gemma has 1.

    Raises:
        ValueError: `scale` is not as long as the last axis.
    """
    normalised, _ = _add_norm(
        x, None, scale, None, epsilon=epsilon, scale_offset=scale_offset
    )
    return normalised


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
        logits: -inf is a token that cannot come; one at least must be finite.
        keys: data of a threefry key for each row; without keys, steps and temperature
            the most likely token is taken.
        steps: how many tokens the row has drawn before.
        temperature: 0 takes the most likely token.
        top_k: draws among that many of the most likely; 0 is no limit.
        top_p: among the most likely that have this probability together; 1 is no limit.
        min_p: among those that have this part of the highest probability.

    Returns:
        Token ids.

    Raises:
        ValueError: an argument does not match the logits, or lacks another.
    """
    return draw(logits, keys, steps, temperature, top_k, top_p, min_p)


_rope_and_write = differentiable(ROPE_KV_WRITE, rope_kv_write)
_flat_gemm = differentiable(MATMUL, matmul)
_add_norm = differentiable(ADD_NORM, add_norm)
