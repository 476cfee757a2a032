"""Self-attention over the paged KV array."""

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.config import Alibi, Attention, Rope
from fdjax.kernels.beam_attention import beam_attention
from fdjax.kernels.decode_attention import UnifiedMax, decode_attention
from fdjax.kernels.paged import KVCache
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.layers.batch import Batch, select
from fdjax.layers.linear import Linear
from fdjax.layers.norm import Normalisation
from fdjax.layers.positions import alibi_slopes, rope_frequencies
from fdjax.notation import Array, Float, Int32


class SelfAttention(nnx.Module):
    """Fused QKV product, RoPE and KV write, attention, output product.

    Args:
        spec: heads, positions, window, and what else is declared.
        hidden_size: `E`.
        layer: which layer of each page is this one's.
        unified: maximum of the asynchronous softmax in decoding, or `None`.
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
        ends = (self.spec.num_heads, self.spec.num_heads + self.spec.num_kv_heads)
        q, k, v = jnp.split(qkv, ends, axis=1)
        return jnp.concatenate([self.q_norm(q), self.k_norm(k), v], axis=1)

    def _attend(
        self,
        q: Float[Array, "T Hq D"],
        kv: KVCache,
        batch: Batch,
    ) -> tuple[Float[Array, "T Hq D"], Int32[Array, " B"]]:
        spec = self.spec
        if batch.phase == "decode":
            out, counts = decode_attention(
                q,
                kv.layer(self.layer),
                batch.pages,
                self.slopes,
                scale=spec.scale,
                soft_cap=spec.soft_cap,
                window=spec.window,
                unified=self.unified,
            )
            return out, jnp.sum(counts, axis=-1)
        if batch.beams is not None:
            out = beam_attention(
                q,
                kv.layer(self.layer),
                batch.pages,
                batch.beams,
                self.slopes,
                scale=spec.scale,
                soft_cap=spec.soft_cap,
                window=spec.window,
            )
            return out, jnp.zeros(batch.pages.num_rows, jnp.int32)
        out = prefill_attention(
            q,
            kv.layer(self.layer),
            batch.pages,
            self.slopes,
            scale=spec.scale,
            soft_cap=spec.soft_cap,
            window=spec.window,
        )
        return out, jnp.zeros(batch.pages.num_rows, jnp.int32)
