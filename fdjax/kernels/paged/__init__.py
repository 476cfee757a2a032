"""What the attention operations share: a call, its pages, and the definition itself."""

from fdjax.kernels.paged.cache import KVCache, KVLayer
from fdjax.kernels.paged.calls import (
    ALL_TOKENS,
    AttentionAttributes,
    PagedAttention,
    ScoreAttributes,
    ScoreSpec,
    attention_attributes,
    by_head,
    check_attention,
    check_window,
    handlers_array,
    handlers_table,
    handlers_window,
    is_float32,
    tokens_within,
)
from fdjax.kernels.paged.definition import (
    attend,
    highest_of,
    scores_of,
)
from fdjax.kernels.paged.integers import int32_of, kind
from fdjax.kernels.paged.layout import PageLayout
from fdjax.kernels.paged.prefixes import SharedPrefixes
from fdjax.kernels.paged.view import PageView

__all__ = [
    "ALL_TOKENS",
    "AttentionAttributes",
    "KVCache",
    "KVLayer",
    "PageLayout",
    "PageView",
    "PagedAttention",
    "ScoreAttributes",
    "ScoreSpec",
    "SharedPrefixes",
    "attend",
    "attention_attributes",
    "by_head",
    "check_attention",
    "check_window",
    "handlers_array",
    "handlers_table",
    "handlers_window",
    "highest_of",
    "int32_of",
    "is_float32",
    "kind",
    "scores_of",
    "tokens_within",
]
