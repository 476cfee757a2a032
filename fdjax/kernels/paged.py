"""What the attention operations share: a call, its pages, and the definition itself."""

import jax.numpy as jnp
import numpy as np

from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree, static


@pytree
class ScoreSpec:
    """What becomes of the products of queries and keys before the softmax.

    Attributes:
        slopes: ALiBi slope of each query head, or `None`.
        scale: factor of the products.
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
        kv: the KV array; the keys and values of the queries' tokens are already in it.
        page_table: pages of each row in order; ids `>= P` are absent.
        lengths: tokens of each row in `kv`.
        scores: what becomes of scores before the softmax.
        layer: which layer of each page.
    """

    q: Float[Array, "T Hq D"]
    kv: Float[Array, "P L 2 Z Hkv D"]
    page_table: Int32[Array, "B W"]
    lengths: Int32[Array, " B"]
    scores: ScoreSpec
    layer: int = static()

    @property
    def group(self) -> int:
        """Query heads of each key/value head."""
        return self.q.shape[1] // self.kv.shape[4]

    @property
    def max_tokens(self) -> int:
        """How many tokens of a row the page table has room for."""
        return self.page_table.shape[1] * self.kv.shape[3]


ALL_TOKENS = 2**31 - 1  # a handler's window, where there is none


def by_head(numbers: Float[Array, " Hq"] | None) -> Float[Array, " _"]:
    """A number for each query head, for a handler; none of them stand for `None`."""
    if numbers is None:
        return jnp.zeros(0, jnp.float32)
    return numbers.astype(jnp.float32)


def attributes(call: PagedAttention) -> dict[str, np.generic]:
    """What a handler is told besides arrays; a soft cap of 0 is none."""
    scores = call.scores
    return {
        "layer": np.int64(call.layer),
        "scale": np.float32(scores.scale),
        "soft_cap": np.float32(scores.soft_cap or 0.0),
        "window": np.int64(min(scores.window or ALL_TOKENS, ALL_TOKENS)),
    }


def gather_pages(
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    *,
    layer: int,
) -> tuple[Float[Array, "B WZ Hkv D"], Float[Array, "B WZ Hkv D"]]:
    """The keys and values of each row's pages, in order of position.

    Ids past the end (absent pages) read some page; mask what they hold.
    """
    rows, width = page_table.shape
    _, _, _, page_size, num_kv_heads, head_dim = kv.shape
    pages = kv.at[page_table, layer].get(mode="clip")
    shape = (rows, width * page_size, num_kv_heads, head_dim)
    return pages[:, :, 0].reshape(shape), pages[:, :, 1].reshape(shape)


def row_of_queries(
    firsts: Int32[Array, " B"], *, num_queries: int
) -> Int32[Array, " T"]:
    """The row that each query belongs to, if to any: the last that has begun."""
    begun = firsts <= jnp.arange(num_queries, dtype=jnp.int32)[:, None]
    return jnp.maximum(jnp.sum(begun, axis=1, dtype=jnp.int32) - 1, 0)


def visible(
    query_positions: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    *,
    num_keys: int,
    window: int | None,
) -> Bool[Array, "B S T"]:
    """Which keys each query sees: those before it, in its row and in its window."""
    key = jnp.arange(num_keys, dtype=jnp.int32)
    query = query_positions[:, :, None]
    seen = (key <= query) & (key < lengths[:, None, None])
    return seen if window is None else seen & (key > query - window)


def attend(
    q: Float[Array, "B S Hq D"],
    k: Float[Array, "B T Hkv D"],
    v: Float[Array, "B T Hkv D"],
    query_positions: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    spec: ScoreSpec,
) -> Float[Array, "B S Hq D"]:
    """Softmax attention in float32; queries that see no key give zeros.

    Keys and values a query does not see never reach its result, even where they are
    NaN: a page may hold what another request left there.
    """
    scores = scores_of(q, k, query_positions, lengths, spec)
    highest = highest_of(scores, spec.sinks)[..., None]
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1)
    if spec.sinks is not None:
        total += jnp.exp(_by_group(spec.sinks, scores) - highest[..., 0])
    value = jnp.where(held(k, lengths), v.astype(jnp.float32), 0.0)
    mixed = _mixed(weights, value)
    total = jnp.moveaxis(total, -1, 1)[..., None]
    out = mixed / jnp.where(total > 0.0, total, 1.0)
    return out.reshape(q.shape).astype(q.dtype)


def _products(
    query: Float[Array, "B S Hkv G D"], key: Float[Array, "B T Hkv D"]
) -> Float[Array, "B Hkv G S T"]:
    """Every query times every key of its head.

    For one query a row, sums of products that XLA fuses are faster than its batched
    dots of tiny matrices (a CPU, 8 rows of 192 tokens: 53 us against 135).
    """
    if query.shape[1] == 1:
        summed = jnp.sum(query * key[:, :, :, None], axis=-1)
        return jnp.moveaxis(summed, 1, -1)[..., None, :]
    return jnp.einsum("bshgd,bthd->bhgst", query, key, precision="highest")


def _mixed(
    weights: Float[Array, "B Hkv G S T"], value: Float[Array, "B T Hkv D"]
) -> Float[Array, "B S Hkv G D"]:
    """Values weighted and summed; for one query as in `_products`."""
    if weights.shape[3] == 1:
        factors = jnp.moveaxis(weights[..., 0, :], -1, 1)[..., None]
        return jnp.sum(factors * value[:, :, :, None], axis=1, keepdims=True)
    return jnp.einsum("bhgst,bthd->bshgd", weights, value, precision="highest")


def scores_of(
    q: Float[Array, "B S Hq D"],
    k: Float[Array, "B T Hkv D"],
    query_positions: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    spec: ScoreSpec,
) -> Float[Array, "B Hkv G S T"]:
    """What the softmax of `attend` is taken of; -inf for keys a query does not see."""
    rows, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = (rows, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    seen = visible(query_positions, lengths, num_keys=k.shape[1], window=spec.window)

    query = q.astype(jnp.float32).reshape(grouped)
    key = jnp.where(held(k, lengths), k.astype(jnp.float32), 0.0)
    scores = _products(query, key) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * jnp.tanh(scores / spec.soft_cap)
    if spec.slopes is not None:
        scores = scores + _alibi(spec.slopes, query_positions, grouped, k.shape[1])
    return jnp.where(seen[:, None, None], scores, -jnp.inf)


def highest_of(
    scores: Float[Array, "B Hkv G S T"], sinks: Float[Array, " Hq"] | None
) -> Float[Array, "B Hkv G S"]:
    """The largest score of each query, a sink's among them; -inf: it sees nothing."""
    highest = jnp.max(scores, axis=-1)
    return highest if sinks is None else jnp.maximum(highest, _by_group(sinks, scores))


def _by_group(
    by_head: Float[Array, " Hq"], scores: Float[Array, "B Hkv G S T"]
) -> Float[Array, "Hkv G 1"]:
    return by_head.astype(jnp.float32).reshape(*scores.shape[1:3], 1)


def held(k: Array, lengths: Int32[Array, " B"]) -> Bool[Array, "B T 1 1"]:
    """Which slots hold a token of their row."""
    return (jnp.arange(k.shape[1]) < lengths[:, None])[:, :, None, None]


def _alibi(
    slopes: Float[Array, " Hq"],
    query_positions: Int32[Array, "B S"],
    grouped: tuple[int, ...],
    num_keys: int,
) -> Float[Array, "B Hkv G S T"]:
    _, _, num_kv_heads, group, _ = grouped
    distance = jnp.arange(num_keys) - query_positions[:, None, None, :, None]
    return slopes.reshape(num_kv_heads, group, 1, 1) * distance.astype(jnp.float32)


def check_attention(operation: str, call: PagedAttention) -> None:
    """Raises `ValueError` where the operands of a paged attention do not fit."""
    q, kv = call.q, call.kv
    num_heads, head_dim = q.shape[1:]
    rows = call.page_table.shape[0]
    _, num_layers, _, _, num_kv_heads, kv_head_dim = kv.shape
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{operation}: {num_heads} query heads over {num_kv_heads} key/value "
            "heads; the first must be a multiple of the second"
        )
    if head_dim != kv_head_dim:
        raise ValueError(
            f"{operation}: q's head size is {head_dim}, kv's {kv_head_dim}"
        )
    if q.dtype != kv.dtype:
        raise ValueError(f"{operation}: q is {q.dtype}, kv is {kv.dtype}")
    if call.lengths.shape != (rows,):
        raise ValueError(
            f"{operation}: page_table has {rows} rows, lengths {call.lengths.shape}"
        )
    if not 0 <= call.layer < num_layers:
        raise ValueError(
            f"{operation}: layer {call.layer} of a kv array of {num_layers}"
        )
