"""`decode_attention` as a Pallas kernel on Mosaic GPU, for Hopper."""

from typing import Any

import jax.numpy as jnp

from fdjax import device
from fdjax.kernels.decode_attention import reference
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.pallas import config, scores
from fdjax.kernels.decode_attention.pallas.problem import Problem
from fdjax.kernels.decode_attention.pallas.scores import ScoreFn
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.kernels.limits import Limits, refuse_layout
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import KVCache, KVLayer, PageView
from fdjax.notation import Array, Float

LIMITS = Limits(
    dtypes=(jnp.bfloat16, jnp.float16),
    head_dims=(64, 128, 256),
    page_sizes=(16, 32, 64, 128),
    groups=range(1, 17),
    queries=range(1, 65_536),
)
MAX_HALVES = 2**31 - 1  # of pages, in all layers


def attend_with_scores(
    q: Float[Array, "B Hq D"],
    kv: KVLayer,
    pages: PageView,
    *parameters: Float[Array, " Hq"],
    scale: float,
    score: ScoreFn | None = None,
    window: int | None = None,
    unified: UnifiedMax | None = None,
    launch_config: config.LaunchConfig | None = None,
    interpret: Any = None,
) -> Attended:
    """Decode attention with a score function of one's own.

    Args:
        q: the queries, of the last token of each row.
        kv: the layer of the cache; the row's own key and value are already in it.
        pages: the rows, one query each; a row of length 0 gives zeros.
        *parameters: of `score`, a number for each query head.
        scale: factor of the scores.
        score: what becomes of the scores before the softmax; see
            `fdjax.kernels.decode_attention.pallas.scores`.
        window: only the last `window` tokens are seen.
        unified: the asynchronous scheme with this maximum; `None` is the synchronised
            one. float16 is always computed by the synchronised one.
        launch_config: instead of the heuristic's.
        interpret: `InterpretGPUParams` runs the kernel on a CPU.

    Returns:
        The result, and for each row and key/value head the number of its query heads
        that left the bounds of `unified`.

    Raises:
        ValueError: the cache is not page-major.
    """
    from fdjax.kernels.decode_attention.pallas import kernel

    if reason := refuse_layout(kv.cache):
        raise ValueError(f"attend_with_scores: {reason}")
    rows, num_heads, head_dim = q.shape
    cache, num_kv_heads = kv.cache, kv.cache.num_kv_heads
    group = num_heads // num_kv_heads
    wide = padded_group(group, num_kv_heads)
    problem = Problem(
        rows=rows,
        num_kv_heads=num_kv_heads,
        group=wide,
        head_dim=head_dim,
        page_size=cache.page_size,
        num_layers=cache.num_layers,
        dtype=cache.dtype,
        scale=scale,
        score=score,
        num_parameters=len(parameters),
        window=window,
        unified=unified,
        config=launch_config or config.heuristic(_sizes(q, cache, pages)),
    )
    table = [_padded(p.astype(jnp.float32), num_kv_heads, wide) for p in parameters]
    empty = jnp.zeros((1, max(8, wide)), jnp.float32)
    operands = (
        _padded(q, num_kv_heads, wide).reshape(-1, head_dim),
        cache.array.reshape(-1, cache.page_size, num_kv_heads * head_dim),
        pages.page_table,
        pages.lengths,
        jnp.stack(table) if table else empty,
        jnp.array([kv.index], jnp.int32),
    )
    out, highest = kernel.run(problem, operands, interpret=interpret)
    out = out.reshape(rows, num_kv_heads, wide, head_dim)[:, :, :group]
    counts = jnp.zeros((rows, num_kv_heads), jnp.int32)
    if unified is not None:
        own = _own_columns(highest, wide)[:, :, :group]
        counts = reference.recomputed_rows(own, unified)
    return out.reshape(q.shape), counts


def _sizes(q: Array, cache: KVCache, pages: PageView) -> config.Sizes:
    rows, num_heads, head_dim = q.shape
    page_size, num_kv_heads = cache.page_size, cache.num_kv_heads
    columns = max(8, padded_group(num_heads // num_kv_heads, num_kv_heads))
    room = pages.width * page_size
    return config.Sizes(rows, num_kv_heads, columns, head_dim, page_size, room)


def padded_group(group: int, num_kv_heads: int) -> int:
    """The group as the kernel takes it: so that blocks of 8 queries hold whole ones."""
    whole = 8 % group == 0 or group % 8 == 0
    if whole and group * num_kv_heads % 8 == 0:
        return group
    return -(-group // 8) * 8


def _padded(by_head: Array, num_kv_heads: int, wide: int) -> Array:
    """`[..., Hq, *rest]` for a wider group; the same array where it is as wide."""
    axis = by_head.ndim - (2 if by_head.ndim == 3 else 1)
    group = by_head.shape[axis] // num_kv_heads
    if group == wide:
        return by_head
    shape = by_head.shape
    split = by_head.reshape(*shape[:axis], num_kv_heads, group, *shape[axis + 1 :])
    padding = [(0, 0)] * split.ndim
    padding[axis + 1] = (0, wide - group)
    return jnp.pad(split, padding).reshape(*shape[:axis], -1, *shape[axis + 1 :])


def _own_columns(highest: Array, group: int) -> Array:
    """`[B, Hkv, N]`, of blocks that share 8 columns, to `[B, Hkv, G]`."""
    rows, heads, columns = highest.shape
    if group >= columns:
        return highest
    offset = (jnp.arange(heads) * group % columns)[:, None] + jnp.arange(group)
    index = jnp.broadcast_to(offset[None], (rows, heads, group))
    return jnp.take_along_axis(highest, index, axis=2)


def run(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    spec = call.scores
    score, parameters = score_of(spec.soft_cap, spec.slopes)
    return attend_with_scores(
        call.q,
        call.kv,
        call.pages,
        *parameters,
        scale=spec.scale,
        score=score,
        window=spec.window,
        unified=call.unified,
    )


def score_of(
    soft_cap: float | None, slopes: Array | None
) -> tuple[ScoreFn | None, tuple[Array, ...]]:
    """Soft cap and ALiBi as a score function like a user's, and its parameters."""
    capped = None if soft_cap is None else scores.soft_capped(soft_cap)
    biased = None if slopes is None else scores.alibi
    parameters = () if slopes is None else (slopes,)
    return scores.chain(capped, biased, takes=0), parameters


def refuse_arguments(call: DecodeAttention) -> str | None:
    """Why the kernel takes none of these arrays on any GPU, or `None`."""
    cache = call.kv.cache
    halves = 2 * cache.num_pages * cache.num_layers
    if call.scores.sinks is not None:
        return "attention sinks"
    if reason := LIMITS.refuse(call):
        return reason
    if call.pages.width == 0:
        return "a page table of width 0"
    if halves > MAX_HALVES:
        return f"{halves} halves of pages; it takes {MAX_HALVES}"
    return config.refuse(_sizes(call.q, cache, call.pages))


def refuse(call: DecodeAttention) -> str | None:
    """Why the Pallas kernel cannot serve this call, or `None`."""
    if device.platform() != "gpu" or not device.is_hopper():
        return f"Mosaic GPU's wgmma needs a Hopper GPU, and this is {device.kind()}"
    return refuse_arguments(call)


IMPL = Impl(run, refuse)
