"""Operations for people who bring their own model: pure functions with stable names.

Each works under `jax.jit`, `jax.shard_map` and `jax.vmap` (but for `rope_and_write`
under the last), and has the derivatives of its definition. Numbers, strings and
booleans are static: `jax.jit` of a function itself needs them in `static_argnames`.
Arrays of whole numbers may have any type of them; the operations count in int32. A
call is served by the fastest implementation that takes it, and elsewhere by the
definition: `fdjax.kernels.op` says how.

Names and signatures are those of `VERSION`: what would break a call changes its first
number, what is added the second.
"""

from fdjax.kernels.attention_states import AttentionState, KeyRange
from fdjax.kernels.op import batch_invariant
from fdjax.kernels.paged import KVCache, KVLayer, PageLayout, PageView
from fdjax.ops.attention import attention, attention_states, merge_states
from fdjax.ops.layer import flat_gemm, rms_norm, rope_and_write, sample
from fdjax.ops.ragged import ragged_paged_attention

__all__ = [
    "VERSION",
    "AttentionState",
    "KVCache",
    "KVLayer",
    "KeyRange",
    "PageLayout",
    "PageView",
    "attention",
    "attention_states",
    "batch_invariant",
    "flat_gemm",
    "merge_states",
    "ragged_paged_attention",
    "rms_norm",
    "rope_and_write",
    "sample",
]

VERSION = "1.3"
