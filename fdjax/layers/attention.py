"""Self-attention over the paged KV array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.config import Alibi, Attention, Rope
from fdjax.kernels.beam_attention import beam_attention
from fdjax.kernels.decode_attention import UnifiedMax, decode_attention
from fdjax.kernels.paged import KVCache, KVLayer, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.layers.batch import Batch, select
from fdjax.layers.linear import Linear
from fdjax.layers.norm import Normalisation
from fdjax.layers.positions import alibi_slopes, rope_frequencies
from fdjax.notation import Array, Float, Int32


class SelfAttention(nnx.Module):
    """One linear map to q, k and v, RoPE and KV write, attention, output map.

    Args:
        spec: heads, positions, window, and what else is declared.
        hidden_size: `E`.
        layer: which layer of each page is this one's.
        unified: maximum of the asynchronous softmax, or `None`.
        dtype: type of the parameters.
    """

    def __init__(
        self,
        spec: Attention,
        hidden_size: int,
        *,
        layer: int,
        unified: UnifiedMax | None = None,
        dtype: jax.typing.DTypeLike,
    ) -> None:
        self.spec = spec
        self.layer = layer
        self.unified = unified
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = Linear(
            hidden_size, heads * spec.head_dim, bias=spec.qkv_bias, dtype=dtype
        )
        self.out = Linear(
            spec.num_heads * spec.head_dim, hidden_size, bias=spec.out_bias, dtype=dtype
        )
        self.q_norm = self.k_norm = nnx.data(None)
        if spec.qk_norm is not None:
            self.q_norm = Normalisation(spec.qk_norm, spec.head_dim, dtype=dtype)
            self.k_norm = Normalisation(spec.qk_norm, spec.head_dim, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "T E"],
        kv: KVCache,
        batch: Batch,
        wanted: Int32[Array, " U"] | None = None,
    ) -> tuple[Float[Array, "U E"], KVCache, Int32[Array, " B"]]:
        """Attends, and writes this layer's keys and values into `kv`.

        Args:
            x: what attention reads.
            kv: the KV array.
            batch: the tokens.
            wanted: those whose result is wanted; `None`: all.

        Returns:
            What attention adds, the updated KV array, and how many query heads of each
            row left the bounds of `unified` and were computed again.
        """
        q, kv = self.project(x, kv, batch)
        mixed, recomputed = self._attend(q, kv, batch)
        mixed = select(mixed.reshape(x.shape[0], -1), wanted)
        return self.out(mixed), kv, recomputed

    def project(
        self,
        x: Float[Array, "T E"],
        kv: KVCache,
        batch: Batch,
    ) -> tuple[Float[Array, "T Hq D"], KVCache]:
        """The queries at their positions; keys and values are written into `kv`."""
        positions = self.spec.positions
        qkv = self.qkv(x).reshape(x.shape[0], -1, self.spec.head_dim)
        return rope_kv_write(
            self._normalised(qkv),
            kv.layer(self.layer),
            batch.positions,
            batch.slots,
            jnp.asarray(rope_frequencies(positions)),
            interleaved=isinstance(positions, Rope) and positions.interleaved,
        )

    @property
    def slopes(self) -> Float[Array, " Hq"] | None:
        """ALiBi's slope of each query head, or `None`."""
        if not isinstance(self.spec.positions, Alibi):
            return None
        return jnp.asarray(alibi_slopes(self.spec.num_heads))

    def _normalised(self, qkv: Float[Array, "T H D"]) -> Float[Array, "T H D"]:
        if self.q_norm is None or self.k_norm is None:
            return qkv
        spec = self.spec
        return normalise_heads(
            qkv, self.q_norm, self.k_norm, spec.num_heads, spec.num_kv_heads
        )

    def _attend(
        self, q: Float[Array, "T Hq D"], kv: KVCache, batch: Batch
    ) -> tuple[Float[Array, "T Hq D"], Int32[Array, " B"]]:
        scale, cap, window = self.spec.scale, self.spec.soft_cap, self.spec.window
        scores = ScoreSpec(self.slopes, scale, cap, window)
        return attend(q, kv.layer(self.layer), batch, scores, self.unified)


def normalise_heads(
    qkv: Float[Array, "T H D"],
    q_norm: Callable[[Array], Array],
    k_norm: Callable[[Array], Array],
    num_heads: int,
    num_kv_heads: int,
) -> Float[Array, "T H D"]:
    """Query and key heads normalised, each by its norm; values as they are."""
    q, k, v = jnp.split(qkv, (num_heads, num_heads + num_kv_heads), axis=1)
    return jnp.concatenate([q_norm(q), k_norm(k), v], axis=1)


def attend(
    q: Float[Array, "T Hq D"],
    kv: KVLayer,
    batch: Batch,
    scores: ScoreSpec,
    unified: UnifiedMax | None,
) -> tuple[Float[Array, "T Hq D"], Int32[Array, " B"]]:
    """Attention by the operation that the phase asks for.

    Args:
        q: queries, at their positions.
        kv: one layer's keys and values, the tokens' own among them.
        batch: the tokens.
        scores: how they are made.
        unified: maximum of the asynchronous softmax, or `None`.

    Returns:
        The mixed values, and how many query heads of each row left the bounds of
        `unified` and were computed again.
    """
    terms = scores.slopes, scores.sinks
    options: dict[str, Any] = {
        "scale": scores.scale,
        "soft_cap": scores.soft_cap,
        "window": scores.window,
    }
    nothing = jnp.zeros(batch.pages.num_rows, jnp.int32)
    if batch.beams is not None:
        operands = q, kv, batch.pages, batch.beams, *terms
        return beam_attention(*operands, **options), nothing

    def decode(
        q: Float[Array, "B Hq D"], pages: PageView
    ) -> tuple[Float[Array, "B Hq D"], Int32[Array, " B"]]:
        out, counts = decode_attention(q, kv, pages, *terms, unified=unified, **options)
        return out, jnp.sum(counts, axis=-1)

    mixed = batch.mixed
    if batch.phase == "decode":
        return decode(q, batch.pages)
    pages = batch.pages if mixed is None else mixed.prompts
    out, counts = prefill_attention(q, kv, pages, *terms, unified=unified, **options)
    if mixed is None:
        return out, counts
    if mixed.decoding is None:
        return out, mixed.by_row(nothing, counts)
    # Each kind of rows by the operation for it, over the same cache.
    one = q.at[mixed.places].get(mode="clip")
    decoded, recomputed = decode(one, mixed.decoding)
    out = out.at[mixed.places].set(decoded, mode="drop")
    return out, mixed.by_row(recomputed, counts)
