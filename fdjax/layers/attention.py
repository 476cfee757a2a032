"""Self-attention over the paged KV array."""

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.config import Alibi, Attention, Positions, Rope
from fdjax.kernels.decode_attention import decode_attention
from fdjax.kernels.prefill_attention import prefill_attention
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.layers.batch import Batch
from fdjax.layers.linear import Linear
from fdjax.layers.norm import Normalisation
from fdjax.layers.positions import alibi_slopes, rope_frequencies
from fdjax.notation import Array, Float


class SelfAttention(nnx.Module):
    """Fused QKV product, RoPE and KV write, attention, output product.

    Args:
        spec: heads, scale, biases and soft cap.
        positions: how positions enter.
        hidden_size: `E`.
        layer: which layer of each page is this one's.
        window: sliding window in tokens, `None` for full attention.
        dtype: type of the parameters.
    """

    def __init__(
        self,
        spec: Attention,
        positions: Positions,
        hidden_size: int,
        *,
        layer: int,
        window: int | None,
        dtype: jax.typing.DTypeLike,
    ) -> None:
        self.spec = spec
        self.positions = positions
        self.layer = layer
        self.window = window
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
        kv: Float[Array, "P L 2 Z Hkv D"],
        batch: Batch,
    ) -> tuple[Float[Array, "T E"], Float[Array, "P L 2 Z Hkv D"]]:
        """Attends, and writes this layer's keys and values into `kv`."""
        qkv = self.qkv(x).reshape(x.shape[0], -1, self.spec.head_dim)
        q, kv = rope_kv_write(
            self._normalised(qkv),
            kv,
            batch.positions,
            batch.slots,
            jnp.asarray(rope_frequencies(self.positions)),
            layer=self.layer,
            interleaved=isinstance(self.positions, Rope) and self.positions.interleaved,
        )
        mixed = self._attend(q, kv, batch)
        return self.out(mixed.reshape(x.shape[0], -1)), kv

    def _normalised(self, qkv: Float[Array, "T H D"]) -> Float[Array, "T H D"]:
        if self.q_norm is None or self.k_norm is None:
            return qkv
        ends = (self.spec.num_heads, self.spec.num_heads + self.spec.num_kv_heads)
        q, k, v = jnp.split(qkv, ends, axis=1)
        return jnp.concatenate([self.q_norm(q), self.k_norm(k), v], axis=1)

    def _attend(
        self,
        q: Float[Array, "T Hq D"],
        kv: Float[Array, "P L 2 Z Hkv D"],
        batch: Batch,
    ) -> Float[Array, "*T Hq D"]:
        spec = self.spec
        slopes = None
        if isinstance(self.positions, Alibi):
            slopes = jnp.asarray(alibi_slopes(spec.num_heads))
        if batch.phase == "decode":
            return decode_attention(
                q,
                kv,
                batch.page_table,
                batch.lengths,
                slopes,
                layer=self.layer,
                scale=spec.scale,
                soft_cap=spec.soft_cap,
                window=self.window,
            )
        return prefill_attention(
            q.reshape(batch.num_rows, -1, spec.num_heads, spec.head_dim),
            kv,
            batch.page_table,
            batch.lengths,
            None,
            slopes,
            layer=self.layer,
            scale=spec.scale,
            soft_cap=spec.soft_cap,
            window=self.window,
        )
