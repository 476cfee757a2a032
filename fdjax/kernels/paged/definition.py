"""The definition of attention over keys and values, in float32."""

import jax.numpy as jnp

from fdjax.kernels.paged.calls import ScoreSpec
from fdjax.notation import Array, Bool, Float, Int32


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
