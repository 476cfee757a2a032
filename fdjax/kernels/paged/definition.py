"""The definition of attention over keys and values, in float32."""

from typing import NamedTuple

import jax.numpy as jnp

from fdjax.kernels.paged.calls import ScoreSpec
from fdjax.notation import Array, Bool, Float, Int32


class Sight(NamedTuple):
    """Which keys each query sees, and how far away they are.

    Attributes:
        seen: the keys.
        distances: position of each key less that of the query.
    """

    seen: Bool[Array, "B S T"]
    distances: Int32[Array, "B S T"]


def causal(
    query_positions: Int32[Array, "B S"],
    held: Bool[Array, "B T"],
    *,
    window: int | None,
) -> Sight:
    """Each query sees the keys before it, of its row's tokens and in its window."""
    key = jnp.arange(held.shape[1], dtype=jnp.int32)
    query = query_positions[:, :, None]
    seen = (key <= query) & held[:, None]
    if window is not None:
        seen &= key > query - window
    return Sight(seen, key - query)


def attend(
    q: Float[Array, "B S Hq D"],
    k: Float[Array, "B T Hkv D"],
    v: Float[Array, "B T Hkv D"],
    query_positions: Int32[Array, "B S"],
    held: Bool[Array, "B T"],
    spec: ScoreSpec,
) -> Float[Array, "B S Hq D"]:
    """Softmax attention in float32; queries that see no key give zeros.

    Keys and values that are not `held`, or that no query of the row sees, never reach
    a result or a derivative, even where they are NaN: a page may hold what another
    request left.
    """
    scores = scores_of(q, k, query_positions, held, spec)
    return mixed(scores, v, held, spec.sinks)[0].astype(q.dtype)


def mixed(
    scores: Float[Array, "B Hkv G S T"],
    v: Float[Array, "B T Hkv D"],
    held: Bool[Array, "B T"],
    sinks: Float[Array, " Hq"] | None,
) -> tuple[Float[Array, "B S Hq D"], Float[Array, "B S Hq"]]:
    """Values weighted by the softmax of scores, and the logarithm of its sum."""
    rows, num_kv_heads, group, num_queries, _ = scores.shape
    highest = highest_of(scores, sinks)[..., None]
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1)
    if sinks is not None:
        total += jnp.exp(_by_group(sinks, scores) - highest[..., 0])
    # Not a weight of 0 alone: 0 times NaN is NaN.
    sees = jnp.any(scores != -jnp.inf, axis=(1, 2, 3))
    value = jnp.where((held & sees)[..., None, None], v.astype(jnp.float32), 0.0)
    summed = _weighted(weights, value)
    log_sum = jnp.moveaxis(highest[..., 0] + jnp.log(total), -1, 1)
    total = jnp.moveaxis(total, -1, 1)[..., None]
    out = summed / jnp.where(total > 0.0, total, 1.0)
    heads = (rows, num_queries, num_kv_heads * group)
    return out.reshape(*heads, -1), log_sum.reshape(heads)


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


def _weighted(
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
    held: Bool[Array, "B T"],
    spec: ScoreSpec,
) -> Float[Array, "B Hkv G S T"]:
    """What the softmax of `attend` is taken of; -inf for keys a query does not see."""
    sight = causal(query_positions, held, window=spec.window)
    return scores_at(q, k, sight, held, spec)


def scores_at(
    q: Float[Array, "B S Hq D"],
    k: Float[Array, "B T Hkv D"],
    sight: Sight,
    held: Bool[Array, "B T"],
    spec: ScoreSpec,
) -> Float[Array, "B Hkv G S T"]:
    """The same where it is said what is seen; the window of `spec` is not asked."""
    rows, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = (rows, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # Padding may be NaN, which a derivative by a key would get from its product with 0.
    sees = jnp.any(sight.seen, axis=-1)[:, :, None, None]
    query = jnp.where(sees, q.astype(jnp.float32), 0.0).reshape(grouped)
    seen = held & jnp.any(sight.seen, axis=1)
    key = jnp.where(seen[:, :, None, None], k.astype(jnp.float32), 0.0)
    scores = _products(query, key) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * jnp.tanh(scores / spec.soft_cap)
    if spec.slopes is not None:
        distances = sight.distances[:, None, None].astype(jnp.float32)
        scores = scores + spec.slopes.reshape(*grouped[2:4], 1, 1) * distances
    return jnp.where(sight.seen[:, None, None], scores, -jnp.inf)


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
