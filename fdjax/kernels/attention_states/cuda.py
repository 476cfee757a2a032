"""`attention_states` by the kernels of `prefill_attention`, through XLA's FFI."""

import jax
import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.attention_states.arguments import Attention, KeyRange
from fdjax.kernels.attention_states.states import AttentionState
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import attention_attributes, by_head, handlers_array
from fdjax.kernels.prefill_attention import PrefillAttention
from fdjax.kernels.prefill_attention import handler as prefill
from fdjax.notation import Array, Int32

NAME = "attention_states"
MAX_TREE_WORDS = ffi.limit(NAME, "max_tree_words")


def run(call: Attention) -> AttentionState:
    """See `fdjax.kernels.attention_states.attention_states`."""
    num_queries, num_heads, head_dim = call.q.shape
    pages, prompts = call.pages, _prompts(call)
    work = prefill.work_on_gpu(prompts)
    if call.keys is not None:
        work = _within(work, call.keys)
    records = prefill.records_of(prompts, prefill.room_on_gpu(prompts))
    handler = jax.ffi.ffi_call(
        ffi.target(NAME),
        (
            jax.ShapeDtypeStruct((num_queries, num_heads, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((num_queries, num_heads), jnp.float32),
            records,
        ),
        vmap_method="sequential",
    )
    output, log_sum, _ = handler(
        call.q,
        handlers_array(call.kv.cache),
        pages.page_table,
        pages.lengths,
        pages.first_positions,
        work,
        jnp.zeros((0, 0), jnp.uint32) if call.tree is None else call.tree,
        by_head(call.scores.slopes),
        by_head(call.scores.sinks),
        attributes=ffi.attributes(attention_attributes(call)),
    )
    # Nobody has written what belongs to no row.
    some = call.queries().position >= 0
    return AttentionState(
        jnp.where(some[:, None, None], output, 0.0),
        jnp.where(some[:, None], log_sum, _without_keys(call)),
    )


def _prompts(call: Attention) -> PrefillAttention:
    """The call whose tiles the work is of."""
    return PrefillAttention(call.q, call.kv, call.pages, call.scores)


def _within(work: Int32[Array, "M 8"], keys: KeyRange) -> Int32[Array, "M 8"]:
    """The same work, of keys in these ranges alone."""
    row, begin, end = work[:, 0], work[:, 4], work[:, 5]
    begin = jnp.maximum(begin, keys.first[row])
    end = jnp.maximum(jnp.minimum(end, keys.end[row]), begin)
    return work.at[:, 4].set(begin).at[:, 5].set(end)


def _without_keys(call: Attention) -> Array:
    """The logarithm of the sum where nothing is seen but a sink, if there is one."""
    sinks = call.scores.sinks
    return jnp.float32(-jnp.inf) if sinks is None else sinks.astype(jnp.float32)


def refuse(call: Attention) -> str | None:
    """Why the kernels cannot serve this call, or `None`."""
    return ffi.refuse(NAME, platform="gpu") or refuse_arguments(call)


def refuse_arguments(call: Attention) -> str | None:
    """Why the kernels take none of these arrays on any GPU, or `None`."""
    tree, scores = call.tree, call.scores
    if tree is not None and (scores.window is not None or scores.slopes is not None):
        return "there is a tree, and positions matter: there is a window, or ALiBi"
    if tree is not None and tree.shape[1] > MAX_TREE_WORDS:
        return f"the tree has {tree.shape[1]} words a query; it takes {MAX_TREE_WORDS}"
    if scores.scale <= 0:
        return f"scale is {scores.scale}; it takes one above 0"
    return prefill.refuse_arguments(_prompts(call), prefill.CUDA_LIMITS)


CUDA = Impl(run, refuse, batch_invariant=True)
