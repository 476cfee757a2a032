"""`decode_attention` as one CUDA kernel, called through XLA's FFI."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan.cuda import make_plan
from fdjax.kernels.attention_plan.shape import MAX_ROWS, PlanShape
from fdjax.kernels.decode_attention import config, handler
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import SchemeAttributes, UnifiedMax
from fdjax.kernels.limits import Limits, refuse_sizes
from fdjax.kernels.op import Impl, is_batch_invariant
from fdjax.kernels.paged import (
    AttentionAttributes,
    attention_attributes,
    handlers_window,
)
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE, add_prefixes, own_pages
from fdjax.notation import Array, Float, Int32

HEAD_MULTIPLE = ffi.limit(handler.NAME, "head_multiple")
LIMITS = Limits(
    dtypes=(jnp.bfloat16, jnp.float16),
    head_dims=ffi.limits(handler.NAME, "head_dims"),
    page_sizes=range(1, ffi.limit(handler.NAME, "max_page_size") + 1),
    groups=range(1, ffi.limit(handler.NAME, "max_large_group") + 1),
    queries=range(MAX_ROWS + 1),
    widths=range(HEAD_MULTIPLE, 2**16, HEAD_MULTIPLE),
)


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Those of the GPU's handler.

    Attributes:
        attention: every attention's.
        scheme: of the softmax.
        launch: the launch config.
        by_slot: the page table has slots.
    """

    attention: AttentionAttributes
    scheme: SchemeAttributes
    launch: config.LaunchAttributes
    by_slot: bool


def run(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    prefixes = call.pages.prefixes
    if prefixes is None or not reads_prefixes_once(call):
        out, recomputed, _ = attend(call, with_about=False)
        return out, recomputed
    pages = own_pages(call.pages, prefixes, page_size=call.kv.cache.page_size)
    own = dataclasses.replace(call, pages=pages)
    out, recomputed, about = attend(own, with_about=True)
    return add_prefixes(call, prefixes, out, about), recomputed


def reads_prefixes_once(call: DecodeAttention) -> bool:
    """Whether positions do not matter: then a row may begin behind its prefix.

    Nor may it matter who shares the prefix (`op.batch_invariant`).
    """
    if is_batch_invariant():
        return False
    scores, page_size = call.scores, call.kv.cache.page_size
    if call.pages.by_slot or page_size < LEAST_SHARED_PAGE:
        return False
    return scores.window is None and scores.slopes is None


def attend(
    call: DecodeAttention, *, with_about: bool
) -> tuple[Array, Array, Float[Array, "B Hq 2"]]:
    """The result over the pages of each row, and what can be added to it.

    Args:
        call: the operation; what rows share is not looked at.
        with_about: whether the last result is wanted; else it is empty.

    Returns:
        The result, how many heads were computed again, and of each head what its
        weights are relative to, in units of log 2, and their sum.
    """
    rows, num_heads, head_dim = call.q.shape
    chosen = config.heuristic(sizes_of(call, shares=with_about))
    shape = chosen.plan_shape(rows, call.kv.cache.num_kv_heads)
    floats = shape.record_floats(call.group, head_dim)
    about = (rows, num_heads, 2) if with_about else (0,)
    told = Attributes(
        attention_attributes(call),
        UnifiedMax.attributes(call.unified),
        chosen.attributes(shape),
        by_slot=call.pages.by_slot,
    )
    out, recomputed, _, about = handler.run(
        call,
        (plan_for(call, shape),),
        (
            jax.ShapeDtypeStruct((floats,), jnp.float32),
            jax.ShapeDtypeStruct(about, jnp.float32),
        ),
        ffi.attributes(told),
    )
    return out, recomputed, about


def sizes_of(call: DecodeAttention, *, shares: bool = False) -> config.Sizes:
    """What the choice of a launch config depends on.

    Args:
        call: the operation.
        shares: what rows share is read apart.
    """
    rows, _, head_dim = call.q.shape
    cache = call.kv.cache
    in_runs = call.pages.by_slot and not shares
    sizes = config.Sizes.of(
        rows,
        cache.num_kv_heads,
        call.max_tokens,
        head_dim=head_dim,
        group=call.group,
        page_size=call.table_page_size,
        in_runs=in_runs,
    )
    return dataclasses.replace(sizes, invariant=is_batch_invariant())


def plan_for(call: DecodeAttention, shape: PlanShape) -> Int32[Array, " _"]:
    """The plan of the call's rows."""
    window = handlers_window(call.scores)
    return make_plan(call.pages.lengths, shape, room=call.max_tokens, window=window)


# Heads of other sizes have no kernel for larger groups: no model has them.
LARGE_GROUP_HEAD_DIMS = ffi.limits(handler.NAME, "large_group_head_dims")
SMALL_GROUP = ffi.limit(handler.NAME, "max_group")


def refuse_arguments(call: DecodeAttention) -> str | None:
    """Why the kernel takes none of these arrays on any GPU, or `None`."""
    head_dim = call.q.shape[2]
    if call.group > SMALL_GROUP and head_dim not in LARGE_GROUP_HEAD_DIMS:
        return (
            f"{call.group} query heads of size {head_dim} for each key/value head; it "
            f"takes {SMALL_GROUP}"
        )
    return LIMITS.refuse(call) or refuse_sizes(call)


def refuse(call: DecodeAttention) -> str | None:
    """Why the CUDA kernel cannot serve this call, or `None`."""
    return ffi.refuse(handler.NAME, platform="gpu") or refuse_arguments(call)


IMPL = Impl(run, refuse, batch_invariant=True)
