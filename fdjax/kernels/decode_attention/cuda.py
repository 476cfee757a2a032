"""`decode_attention` as one CUDA kernel, called through XLA's FFI."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.attention_plan import host
from fdjax.kernels.attention_plan.cuda import make_plan
from fdjax.kernels.attention_plan.shape import MAX_ROWS, PlanShape
from fdjax.kernels.decode_attention import config, handler
from fdjax.kernels.decode_attention.arguments import Attended, DecodeAttention
from fdjax.kernels.decode_attention.unified import SchemeAttributes, UnifiedMax
from fdjax.kernels.limits import Limits, refuse_sizes
from fdjax.kernels.op import Impl, is_batch_invariant
from fdjax.kernels.paged import (
    AttentionAttributes,
    PageView,
    SharedPrefixes,
    attention_attributes,
    handlers_window,
)
from fdjax.kernels.shared_prefix.cuda import (
    LEAST_SHARED_PAGE,
    own_pages,
    prefix_operands,
    prefix_records,
)
from fdjax.kernels.shared_prefix.cuda import NAME as SHARED_PREFIX
from fdjax.notation import Array, Int32

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


@dataclasses.dataclass(frozen=True)
class SharingAttributes:
    """Those of the GPU's handler that reads what rows share, too.

    Attributes:
        own: of attention over what each row has of its own.
        shared: of attention over what they share.
    """

    own: Attributes
    shared: AttentionAttributes


def run(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    prefixes = call.pages.prefixes
    if prefixes is None or not reads_prefixes_once(call):
        return attend(call)
    pages = own_pages(call.pages, prefixes, page_size=call.kv.cache.page_size)
    own = dataclasses.replace(call, pages=pages)
    return attend_sharing(own, call.pages, prefixes)


def reads_prefixes_once(call: DecodeAttention) -> bool:
    """Whether positions do not matter: then a row may begin behind its prefix.

    Nor may it matter who shares the prefix (`op.batch_invariant`).
    """
    if is_batch_invariant():
        return False
    scores, page_size = call.scores, call.kv.cache.page_size
    if call.pages.by_slot or page_size < LEAST_SHARED_PAGE:
        return False
    return scores.window is None and scores.slopes is None and scores.scale > 0


def attend(call: DecodeAttention) -> Attended:
    """The result over the pages of each row; what rows share is not looked at."""
    launch = _launch_of(call, shares=False)
    memory, attributes = (launch.records,), ffi.attributes(launch.attributes)
    out, recomputed, _ = handler.run(call, (launch.plan,), memory, attributes)
    return out, recomputed


def attend_sharing(
    own: DecodeAttention, pages: PageView, prefixes: SharedPrefixes
) -> Attended:
    """The result over what rows have of their own, and over what they share.

    Args:
        own: the operation over what each row does not share.
        pages: of the rows, what they share being the leading ones.
        prefixes: what they share, which is read once.
    """
    launch = _launch_of(own, shares=True)
    shared = attention_attributes(own)
    about = jax.ShapeDtypeStruct((*own.q.shape[:2], 2), jnp.float32)
    out, recomputed, *_ = handler.run(
        own,
        (launch.plan, *prefix_operands(pages, prefixes)),
        (launch.records, about, prefix_records(own.kv.cache, prefixes)),
        ffi.attributes(SharingAttributes(launch.attributes, shared)),
        name=SHARED_PREFIX,
    )
    return out, recomputed


class _Launch(NamedTuple):
    """What the kernel is launched with."""

    attributes: Attributes
    plan: Int32[Array, " _"]
    records: jax.ShapeDtypeStruct


def _launch_of(call: DecodeAttention, *, shares: bool) -> _Launch:
    rows, _, head_dim = call.q.shape
    chosen = config.heuristic(sizes_of(call, shares=shares))
    shape = chosen.plan_shape(rows, call.kv.cache.num_kv_heads)
    floats = shape.record_floats(call.group, head_dim)
    told = Attributes(
        attention_attributes(call),
        UnifiedMax.attributes(call.unified),
        chosen.attributes(shape),
        by_slot=call.pages.by_slot,
    )
    records = jax.ShapeDtypeStruct((floats,), jnp.float32)
    return _Launch(told, plan_for(call, shape), records)


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


def told(call: DecodeAttention) -> str:
    """The plan in words, and how even it is, where the rows' lengths are known.

    They are not while a program is traced. Of rows with a prefix in common it is the
    plan of their own tokens.
    """
    prefixes = call.pages.prefixes
    shares = prefixes is not None and reads_prefixes_once(call)
    chosen = config.heuristic(sizes_of(call, shares=shares))
    words = f"a plan for {chosen}"
    lengths = _known(call.pages.lengths)
    shared = _known(prefixes.tokens) if prefixes is not None and shares else 0
    if lengths is None or shared is None or not len(lengths):
        return words
    plan = host.make_plan(
        np.maximum(lengths - shared, 0).tolist(),
        chosen.plan_shape(len(lengths), call.kv.cache.num_kv_heads),
        room=call.max_tokens,
        window=call.scores.window,
    )
    cut = f", {plan.num_pieces} of them pieces of rows" if plan.num_pieces else ""
    return (
        f"{words}: {len(plan.items)} items{cut}; the busiest cluster does "
        f"{plan.busiest:.2f} of the mean"
    )


def _known(array: Any) -> "np.ndarray[Any, Any] | None":
    """What an array holds; `None` while a program is traced, or where it is gone."""
    if isinstance(array, jax.core.Tracer | jax.ShapeDtypeStruct):
        return None
    gone = isinstance(array, jax.Array) and array.is_deleted()
    return None if gone else np.asarray(array)


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


IMPL = Impl(run, refuse, batch_invariant=True, told=told)
