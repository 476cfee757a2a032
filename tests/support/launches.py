"""What the launches of a layer program do, on a CPU: memory as the handler has it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fdjax.kernels.activations import ACTIVATIONS
from fdjax.kernels.add_norm import add_norm
from fdjax.kernels.attention_states import AttentionState
from fdjax.kernels.decode_attention import DecodeAttention, decode_attention
from fdjax.kernels.embedding import embedding
from fdjax.kernels.layer_program import launches as do
from fdjax.kernels.layer_program.call import Recomputed, Shared, Tokens
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.layer_program.memory import Memory
from fdjax.kernels.layer_program.operands import Operand, Region, WeightOperand
from fdjax.kernels.paged import KVCache, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention, prefill_attention
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.kernels.weight import FORMATS, Dense
from fdjax.notation import Array
from tests.support.read_once import found_in_pages, joined

FUNCTIONS = tuple(ACTIVATIONS.values())


class Simulation:
    """Regions, filled with NaN at first, and what is done with them.

    Args: those of `fdjax.kernels.layer_program.call.run`.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        memory: Memory,
        tokens: Tokens,
        kv: KVCache,
        weights: Sequence[Array],
        decoding: Sequence[DecodeAttention],
        prompts: Sequence[PrefillAttention],
        shared: Shared | None = None,
        *,
        num_heads: int,
        hidden_size: int,
        interleaved: bool,
    ) -> None:
        self.tokens, self.kv, self.launches = tokens, kv, launches
        self.num_heads, self.interleaved = num_heads, interleaved
        self.decoding, self.prompts, self.shared = decoding, prompts, shared
        self.found: AttentionState | None = None  # by rows that share prefixes
        count, self.hidden_size = tokens.ids.size, hidden_size
        wanted = tokens.wanted.size or count
        sizes = (
            *(count * width for width in memory.widths),
            memory.scratch,
            wanted * hidden_size,
        )
        self.regions = [np.full(size, np.nan, np.float32) for size in sizes]
        self.regions += [np.array(weight, np.float32).ravel() for weight in weights]
        rows = decoding[0].pages.num_rows if decoding else 0
        self.recomputed = np.zeros((kv.num_layers, rows), np.int32)

    def run(self) -> tuple[Array, KVCache, Recomputed]:
        """All launches; the results of the call."""
        for launch in self.launches:
            getattr(self, type(launch).__name__.lower())(launch)
        hidden = self.regions[Region.HIDDEN].reshape(-1, self.hidden_size)
        rows = self.prompts[0].pages.num_rows if self.prompts else 0
        prompts = jnp.zeros((self.kv.num_layers, rows), jnp.int32)
        counts = Recomputed(jnp.asarray(self.recomputed), prompts)
        return jnp.asarray(hidden), self.kv, counts

    def view(self, operand: Operand, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        region = self.regions[operand.region]
        assert operand.offset + size <= region.size
        return region[operand.offset : operand.offset + size].reshape(shape)

    def read(self, operand: Operand | None, *shape: int) -> Any:
        return None if operand is None else jnp.array(self.view(operand, *shape))

    def weight(self, weight: WeightOperand, n: int, k: int) -> Any:
        assert FORMATS[weight.format] is Dense
        (values,) = weight.arrays
        return self.read(values, n, k)

    def _apart(self, *operands: tuple[Operand | None, int]) -> None:
        """What lies at the first, of so many elements, and at the others is apart."""
        (target, size), *others = operands
        assert target is not None
        for other, extent in others:
            if other is not None and other.region == target.region:
                begin, end = other.offset, other.offset + extent
                assert end <= target.offset or target.offset + size <= begin

    def embed(self, one: do.Embed) -> None:
        assert one.rows == self.tokens.ids.size
        table = one.num_positions, one.columns
        vectors = self.read(one.positions, *table)
        places = self.tokens.positions + one.position_offset
        self.view(one.out, one.rows, one.columns)[:] = embedding(
            Dense(self.read(one.table, one.num_vectors, one.columns)),
            self.tokens.ids,
            vectors,
            None if vectors is None else places,
            scale=one.scale,
        )

    def norm(self, one: do.Norm) -> None:
        shape = one.rows, one.columns
        normal, total = add_norm(
            self.read(one.x, *shape),
            self.read(one.delta, *shape),
            self.read(one.scale, one.columns),
            self.read(one.bias, one.columns),
            epsilon=one.epsilon,
            scale_offset=one.scale_offset,
            delta_scale=self.read(one.delta_scale, one.columns),
        )
        if one.total is not None:
            self.view(one.total, *shape)[:] = total
        self.view(one.out, *shape)[:] = normal

    def headnorm(self, one: do.HeadNorm) -> None:
        heads = one.num_heads + 2 * one.num_kv_heads
        shape = one.rows, heads, one.head_dim
        x = np.array(self.read(one.x, *shape))
        ends = 0, one.num_heads, one.num_heads + one.num_kv_heads
        norms = (one.scale, one.bias), (one.key_scale, one.key_bias)
        for begin, end, (scale, bias) in zip(ends, ends[1:], norms, strict=False):
            x[:, begin:end] = add_norm(
                jnp.asarray(x[:, begin:end]),
                None,
                self.read(scale, one.head_dim),
                self.read(bias, one.head_dim),
                epsilon=one.epsilon,
                scale_offset=one.scale_offset,
            ).normal
        self.view(one.out, *shape)[:] = x

    def linear(self, one: do.Linear) -> None:
        of_y = one.m * (one.n // 2 if one.gated else one.n)
        wide = one.wide, one.slice_rows * one.n
        self._apart((one.y, of_y), (one.x, one.m * one.k), wide)
        y = self.read(one.x, one.m, one.k) @ self.weight(one.weight, one.n, one.k).T
        if one.bias is not None:
            y = y + self.read(one.bias, one.n)
        columns = one.n
        if one.gated:
            columns //= 2
            y = FUNCTIONS[one.activation](y[:, :columns]) * y[:, columns:]
            if one.slice_rows:
                assert one.wide is not None
                self.view(one.wide, one.slice_rows, one.n)[:] = np.nan
        if one.residual is not None:
            y = y + self.read(one.residual, one.m, columns)
        self.view(one.y, one.m, columns)[:] = y

    def activate(self, one: do.Activate) -> None:
        self.view(one.y, one.size)[:] = FUNCTIONS[one.activation](
            self.read(one.y, one.size)
        )

    def _rotate(self, layer: int, qkv: Operand, rows: int) -> Array:
        head_dim, kv_heads = self.kv.head_dim, self.kv.num_kv_heads
        shape = rows, self.num_heads + 2 * kv_heads, head_dim
        q, self.kv = rope_kv_write(
            self.read(qkv, *shape),
            self.kv.layer(layer),
            self.tokens.positions,
            self.tokens.slots,
            self.tokens.frequencies,
            interleaved=self.interleaved,
        )
        return q

    def rotate(self, one: do.Rotate) -> None:
        q = self._rotate(one.layer, one.qkv, self.tokens.ids.size)
        heads = self.num_heads + 2 * self.kv.num_kv_heads
        self._apart((one.query, q.size), (one.qkv, q.size // self.num_heads * heads))
        self.view(one.query, *q.shape)[:] = q

    def _terms(self, one: do.Decode | do.Prefill) -> tuple[Any, dict[str, Any]]:
        slopes = self.tokens.slopes if self.tokens.slopes.size else None
        options = {
            "scale": one.scores.scale,
            "soft_cap": one.scores.soft_cap or None,
            "window": one.scores.window,
        }
        return slopes, options

    def decode(self, one: do.Decode) -> None:
        call = self.decoding[one.plan]
        rows, head_dim = call.pages.num_rows, self.kv.head_dim
        if one.rotates:
            q = self._rotate(one.layer, one.q, rows)
            heads = self.num_heads + 2 * self.kv.num_kv_heads
            self._apart((one.out, q.size), (one.q, q.size // self.num_heads * heads))
        else:
            q = self.read(one.q, rows, self.num_heads, head_dim)
        slopes, options = self._terms(one)
        layer = self.kv.layer(one.layer)
        out, _ = decode_attention(q, layer, call.pages, slopes, **options)
        if one.shares:
            self._apart((one.out, q.size), (one.q, q.size))
            self.found = found_in_pages(replace(call, q=q, kv=layer))
        self.view(one.out, *out.shape)[:] = out

    def share(self, one: do.Share) -> None:
        assert self.shared is not None and self.found is not None
        shape = self.decoding[0].pages.num_rows, self.num_heads, self.kv.head_dim
        q, layer = self.read(one.q, *shape), self.kv.layer(one.layer)
        scores = ScoreSpec(None, one.scores.scale, one.scores.soft_cap or None, None)
        call = replace(self.decoding[0], q=q, kv=layer, scores=scores)
        table, prefixes = self.shared.page_table, self.shared.prefixes
        out = joined(call, self.found, table, prefixes).output
        self.found = None
        self.view(one.out, *shape)[:] = out

    def prefill(self, one: do.Prefill) -> None:
        call = self.prompts[one.tiles]
        shape = self.tokens.ids.size, self.num_heads, self.kv.head_dim
        slopes, options = self._terms(one)
        out, _ = prefill_attention(
            self.read(one.q, *shape),
            self.kv.layer(one.layer),
            call.pages,
            slopes,
            **options,
        )
        self.view(one.out, *shape)[:] = out

    def sum(self, one: do.Sum) -> None:
        total = self.read(one.x, one.size) + self.read(one.delta, one.size)
        self.view(one.total, one.size)[:] = total

    def _places(self, *, decoding: bool) -> np.ndarray:
        return np.asarray(self.tokens.places if decoding else self.tokens.wanted)

    def gather(self, one: do.Gather) -> None:
        places = self._places(decoding=one.decoding).clip(0, one.rows - 1)
        size = len(places) * one.columns
        self._apart((one.out, size), (one.x, one.rows * one.columns))
        x = np.asarray(self.read(one.x, one.rows, one.columns))
        self.view(one.out, len(places), one.columns)[:] = x[places]

    def scatter(self, one: do.Scatter) -> None:
        places = self._places(decoding=one.decoding)
        x = np.asarray(self.read(one.x, len(places), one.columns))
        inside = (places >= 0) & (places < one.rows)
        self.view(one.out, one.rows, one.columns)[places[inside]] = x[inside]
