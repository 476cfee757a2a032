"""Prefixes that rows share, read once on a CPU: what `SharedPrefixes` says, literally.

The definition of `decode_attention` reads each row's own pages and does not look at
`prefixes`. This follows them: each item of `work` attends through the pages of its
leader, and `parts` say whose records are joined, level by level. NaN is what nobody
leaves, so that a record which is read in error is seen.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import jax.numpy as jnp
from jax import lax

from fdjax.kernels.attention_states import AttentionState, merge_states
from fdjax.kernels.decode_attention import OP, DecodeAttention, reference
from fdjax.kernels.decode_attention.arguments import Attended
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import PagedAttention, SharedPrefixes, scores_of
from fdjax.kernels.paged.definition import Sight, mixed, scores_at
from fdjax.kernels.prefill_plan.tiles import TILE_ROWS
from fdjax.kernels.shared_prefix.cuda import own_pages
from fdjax.notation import Array, Int32

NAME = "read_once"


def decode_attention(call: DecodeAttention) -> Attended:
    """See `fdjax.kernels.decode_attention`: each row's own pages, and then prefixes."""
    prefixes = call.pages.prefixes
    if prefixes is None:
        return reference.decode_attention(call)
    own = own_pages(call.pages, prefixes, page_size=call.kv.cache.page_size)
    found = joined(
        call, found_in_pages(replace(call, pages=own)), call.pages.page_table, prefixes
    )
    counts = (call.q.shape[0], call.kv.cache.num_kv_heads)
    return found.output.astype(call.q.dtype), jnp.zeros(counts, jnp.int32)


@contextmanager
def reading_once() -> Generator[None]:
    """Inside a `with` block `decode_attention` reads prefixes once."""
    impls = OP._impls
    impls[NAME] = Impl(decode_attention, lambda call: None, on_demand=True)
    try:
        with OP.using(NAME):
            yield
    finally:
        del impls[NAME]


def found_in_pages(call: PagedAttention) -> AttentionState:
    """What each row's last token finds in the pages of its view."""
    (keys, values), held = call.gathered(), call.held()
    positions = (call.pages.lengths - 1)[:, None]
    scores = scores_of(call.q[:, None], keys, positions, held, call.scores)
    output, log_sum = mixed(scores, values, held, call.scores.sinks)
    return AttentionState(output[:, 0], log_sum[:, 0])


def joined(
    call: PagedAttention,
    own: AttentionState,
    page_table: Int32[Array, "B W"],
    prefixes: SharedPrefixes,
) -> AttentionState:
    """What queries find in all of their keys.

    Args:
        call: the queries, the cache, and what becomes of scores.
        own: what they have found behind their prefixes, sinks among it.
        page_table: of each row, as far as it shares it.
        prefixes: what rows share.
    """
    order, parts = prefixes.order, prefixes.parts
    records = _records(call, page_table, prefixes)
    found = AttentionState(own.output[order], own.log_sum[order])  # by place
    for level in range(parts.shape[0]):
        record, count, token, _ = parts[level].T
        count = jnp.where(record >= 0, count, 0)

        def add(
            piece: Array,
            found: AttentionState,
            at: tuple[Array, Array, Array] = (record, count, token),
        ) -> AttentionState:
            record, count, token = at
            exists = piece < count
            output = records.output.at[record + piece, token].get(mode="fill")
            log_sum = records.log_sum.at[record + piece, token].get(mode="fill")
            log_sum = jnp.where(exists[:, None], log_sum, -jnp.inf)
            return merge_states((found, AttentionState(output, log_sum)))

        found = lax.fori_loop(0, jnp.max(count), add, found)
    return AttentionState(
        jnp.zeros_like(found.output).at[order].set(found.output),
        jnp.zeros_like(found.log_sum).at[order].set(found.log_sum),
    )


def _records(
    call: PagedAttention, page_table: Int32[Array, "B W"], prefixes: SharedPrefixes
) -> AttentionState:
    """What is left by each item, and by each query of its tile."""
    leader, first, position, tokens, begin, end, record, _ = prefixes.work.T
    rows, tile = call.pages.num_rows, max(TILE_ROWS // call.group, 1)
    token = jnp.arange(min(tile, rows), dtype=jnp.int32)
    q = call.q[prefixes.order[jnp.minimum(first[:, None] + token, rows - 1)]]
    table = page_table[leader]
    keys, values = call.kv.gather(table)
    key = jnp.arange(keys.shape[1], dtype=jnp.int32)
    held = call.kv.cache.present(table)
    held &= (key >= begin[:, None]) & (key < end[:, None])
    distances = key - (position[:, None] + token)[:, :, None]
    seen = held[:, None] & (distances <= 0)
    scores = replace(call.scores, sinks=None)
    weighed = scores_at(q, keys, Sight(seen, distances), held, scores)
    output, log_sum = mixed(weighed, values, held, None)
    written = (token < tokens[:, None])[..., None]
    at = jnp.where(tokens > 0, record, prefixes.num_records)  # past the end: dropped
    nobodys = jnp.full_like(log_sum, jnp.nan)
    return AttentionState(
        jnp.full_like(output, jnp.nan)
        .at[at]
        .set(jnp.where(written[..., None], output, jnp.nan), mode="drop"),
        nobodys.at[at].set(jnp.where(written, log_sum, jnp.nan), mode="drop"),
    )
