"""A call of an attention operation, and what it asks of scores."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fdjax.kernels import ffi
from fdjax.kernels.paged.cache import KVCache, KVLayer
from fdjax.kernels.paged.view import NO_PAGE, PageView, Queries
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree, static


@pytree
class ScoreSpec:
    """What becomes of the dot products of queries and keys before the softmax.

    Attributes:
        slopes: ALiBi slope of each query head, or `None`.
        scale: factor of the dot products.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`, unless `None`.
        window: a query sees itself and the `window - 1` tokens before it; all of them
            if `None`.
        sinks: of each query head the score of one more token, which every query sees
            and whose value is zero, or `None`: neither scaled nor capped.
    """

    slopes: Float[Array, " Hq"] | None
    scale: float = static()
    soft_cap: float | None = static()
    window: int | None = static()
    sinks: Float[Array, " Hq"] | None = None


@pytree
class PagedAttention:
    """One call of an attention operation.

    Attributes:
        q: the queries.
        kv: the layer of the cache; the keys and values of the queries' tokens are
            already in it.
        pages: the rows, and which of their tokens the queries are.
        scores: what becomes of scores before the softmax.
    """

    q: Float[Array, "T Hq D"]
    kv: KVLayer
    pages: PageView
    scores: ScoreSpec

    @property
    def group(self) -> int:
        """Query heads of each key/value head."""
        return self.q.shape[1] // self.kv.cache.num_kv_heads

    @property
    def table_page_size(self) -> int:
        """Tokens that an entry of the page table stands for."""
        return 1 if self.pages.by_slot else self.kv.cache.page_size

    @property
    def max_tokens(self) -> int:
        """How many tokens of a row the page table has room for."""
        return self.pages.width * self.table_page_size

    def queries(self) -> Queries:
        """Which rows the queries belong to, and where they stand in them."""
        return self.pages.queries(self.q.shape[0], max_tokens=self.max_tokens)

    def held(self) -> Bool[Array, "B N"]:
        """Where the table has a token of its row: within its length, on a page."""
        pages = self.pages
        present = self.kv.cache.present(pages.page_table, by_slot=pages.by_slot)
        return present & tokens_within(pages.lengths, present.shape[1])

    def gathered(self) -> tuple[Float[Array, "B N Hkv D"], Float[Array, "B N Hkv D"]]:
        """The keys and values of each row, in order; mask what is not `held`."""
        table = self.pages.page_table
        gather = self.kv.gather_slots if self.pages.by_slot else self.kv.gather
        return gather(table)


def tokens_within(lengths: Int32[Array, " B"], num_tokens: int) -> Bool[Array, "B N"]:
    """Which of so many tokens of each row lie within its length."""
    return jnp.arange(num_tokens, dtype=jnp.int32) < lengths[:, None]


ALL_TOKENS = 2**31 - 1  # a handler's window, where there is none
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ScoreAttributes:
    """What handlers are told of scores.

    Attributes:
        scale: of the dot products.
        soft_cap: 0: none.
        window: `ALL_TOKENS`: none.
    """

    scale: float
    soft_cap: float
    window: int

    @staticmethod
    def of(
        scale: float, soft_cap: float | None, window: int | None
    ) -> "ScoreAttributes":
        """From what a `ScoreSpec` says, where `None` is none."""
        tokens = min(window or ALL_TOKENS, ALL_TOKENS)
        return ScoreAttributes(float(scale), float(soft_cap or 0.0), tokens)


@dataclass(frozen=True)
class AttentionAttributes:
    """What every handler of attention is told besides arrays.

    Attributes:
        layer: whose keys and values are read.
        scores: what becomes of scores before the softmax.
    """

    layer: int
    scores: ScoreAttributes


def handlers_window(scores: ScoreSpec) -> int:
    """The window as handlers are told it."""
    return _scores(scores).window


def handlers_table(call: PagedAttention) -> Int32[Array, "B W"]:
    """The page table as handlers take it: they count slots of all layers and halves."""
    cache, table = call.kv.cache, call.pages.page_table
    if not call.pages.by_slot:
        return table
    apart = cache.layout.page_stride // cache.layout.token_stride
    counted = table // cache.page_size * apart + table % cache.page_size
    exists = (table >= 0) & (table < cache.num_pages * cache.page_size)
    return jnp.where(exists, counted, NO_PAGE)


def handlers_array(cache: KVCache) -> Float[Array, "P ..."]:
    """The array as handlers take it; its axes tell them which layout it has.

    Page-major it has the axes that its owner gave it, `[P, L, 2, Z, Hkv, D]`;
    interleaved it is `[P, Z, Hkv, 2, width]`.
    """
    layout = cache.layout
    if layout == layout.as_page_major:
        return cache.array
    sizes = (cache.page_size, cache.num_kv_heads, 2, layout.value_stride)
    return cache.array.reshape(cache.num_pages, *sizes)


def by_head(numbers: Float[Array, " Hq"] | None) -> Float[Array, " _"]:
    """A number for each query head, for a handler; none of them stand for `None`."""
    floats = None if numbers is None else numbers.astype(jnp.float32)
    return ffi.or_empty(floats, 0, dtype=jnp.float32)


def attention_attributes(call: PagedAttention) -> AttentionAttributes:
    """What a handler is told of a call besides arrays."""
    return AttentionAttributes(call.kv.index, _scores(call.scores))


def _scores(scores: ScoreSpec) -> ScoreAttributes:
    return ScoreAttributes.of(scores.scale, scores.soft_cap, scores.window)


def check_attention(
    operation: str, call: PagedAttention, *, takes_slots: bool = False
) -> None:
    """Raises `ValueError` where the operands of a paged attention do not fit.

    Args:
        operation: its name.
        call: the operands.
        takes_slots: rows may be told `by_slot`.
    """
    if call.pages.by_slot and not takes_slots:
        raise ValueError(
            f"{operation}: the rows' table has slots, which rows of one query each may "
            "have; give pages"
        )
    _check_scores(operation, call.scores)
    q, cache = call.q, call.kv.cache
    if len(q.shape) != 3:
        raise ValueError(f"{operation}: q is {q.shape}; expected [T, Hq, D]")
    if not cache.num_pages:
        raise ValueError(f"{operation}: kv has 0 pages; give it one or more")
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = cache.num_kv_heads
    if not num_heads:
        raise ValueError(f"{operation}: q has 0 heads; give it one or more")
    for name in ("slopes", "sinks"):
        by_head = getattr(call.scores, name)
        if by_head is not None and by_head.shape != (num_heads,):
            raise ValueError(
                f"{operation}: {name} has shape {by_head.shape}, q {num_heads} heads; "
                f"expected [{num_heads}]"
            )
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{operation}: {num_heads} query heads over {num_kv_heads} key/value "
            "heads; the first must be a multiple of the second"
        )
    if head_dim != cache.head_dim:
        raise ValueError(
            f"{operation}: q's head size is {head_dim}, kv's {cache.head_dim}; give q "
            f"heads of {cache.head_dim}"
        )
    if q.dtype != cache.dtype:
        raise ValueError(
            f"{operation}: q is {q.dtype}, kv is {cache.dtype}; cast q to {cache.dtype}"
        )


def _check_scores(operation: str, scores: ScoreSpec) -> None:
    soft_cap, window = scores.soft_cap, scores.window
    if soft_cap is not None and not (soft_cap > 0 and is_float32(soft_cap)):
        raise ValueError(
            f"{operation}: soft_cap is {soft_cap}; it must be positive and finite in "
            "float32; leave it out for none"
        )
    check_window(operation, window)


def is_float32(value: Any) -> bool:
    """Whether a number is finite, and still is as a float32.

    By Python's own numbers: an array's would be traced, or overflow in its own type.
    """
    try:
        return abs(float(value)) <= _MOST_FLOAT32
    except OverflowError:  # an int beyond float64
        return False


def check_window(operation: str, window: Any, name: str = "window") -> None:
    """Raises `ValueError` where a window, called `name`, is no number of tokens."""
    is_whole = isinstance(window, int | np.integer) and not isinstance(window, bool)
    if window is not None and not (is_whole and window >= 1):
        raise ValueError(
            f"{operation}: {name} is {window}; it must be a whole number of tokens, 1 "
            "or more; leave it out to see all"
        )
