"""From a model's declared layers to its program."""

import functools
from typing import NamedTuple

from fdjax.config import (
    Alibi,
    AttentionPart,
    FeedForwardPart,
    GatedMlp,
    LayerNorm,
    LayerSpec,
    Norm,
    Rope,
)
from fdjax.layers.positions import alibi_slopes, rope_frequencies
from fdjax.models.config import ModelConfig
from fdjax.models.program import instructions as do
from fdjax.models.program.instructions import Epilogue, Program, Rows, Value


@functools.lru_cache(16)  # every size of a call is traced anew
def program_of(config: ModelConfig, *, selects: bool) -> Program:
    """The program of a step.

    Args:
        config: the model.
        selects: logits of some tokens only are wanted, as in prompts of one token a
            row: after the last layer's attention the program goes on with these.
    """
    builder = _Builder(config)
    builder.embed()
    for index, layer in enumerate(config.layers):
        last = index + 1 == config.num_layers
        builder.layer(index, layer, selects=selects and last)
    builder.head()
    return Program(
        tuple(builder.instructions), tuple(builder.values), config.hidden_size
    )


class _LeftOver(NamedTuple):
    """What is to be normalised, and added to the residual stream.

    Attributes:
        delta: what is added.
        path: of the norm's parameters.
        norm: its kind.
    """

    delta: Value
    path: str
    norm: Norm


class _Builder:
    """Instructions so far, and what the next one reads.

    A linear map whose result is added to the residual stream adds it itself, unless a
    norm stands between: then the next norm does what is left over, both.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.instructions: list[do.Instruction] = []
        self.values: list[Value] = []
        self._config = config
        self._rows: Rows = "tokens"
        self._left_over: _LeftOver | None = None

    def embed(self) -> None:
        embedding = self._config.embedding
        positions = embedding.positions
        self._x = self._value("x")
        self.instructions.append(
            do.Embed(
                (),
                (self._x,),
                weight="embed.weight",
                position_table=None if positions is None else "positions.weight",
                position_offset=0 if positions is None else positions.offset,
                factor=embedding.scale,
            )
        )
        if embedding.norm is not None:
            self._x = self._norm(self._x, "embed_norm", embedding.norm, "x")

    def layer(self, index: int, spec: LayerSpec, *, selects: bool) -> None:
        path, parallel = f"layers.{index}.", spec.mlp_norm is None
        normal = self._add_norm(f"{path}attention_norm", spec.attention_norm)
        mixed = self._attention(index, f"{path}attention", spec.attention, normal)
        if selects:
            self._rows = "wanted"
            mixed, self._x = self._select(mixed), self._select(self._x)
            if parallel:
                normal = self._select(normal)
        post = f"{path}attention_post_norm", spec.attention_post_norm
        self._add(mixed, f"{path}attention.out", post, bias=spec.attention.out_bias)
        if spec.mlp_norm is None:
            self._add_left_over()
        else:
            normal = self._add_norm(f"{path}mlp_norm", spec.mlp_norm)
        up = self._up(f"{path}mlp.up", spec.mlp, normal)
        post = f"{path}mlp_post_norm", spec.mlp_post_norm
        self._add(up, f"{path}mlp.down", post, bias=spec.mlp.bias)

    def head(self) -> None:
        normal = self._add_norm("final_norm", self._config.final_norm)
        embedding = self._config.embedding
        self.instructions.append(
            do.Head(
                (normal,),
                (),
                weight="embed.weight" if embedding.tied else "head.weight",
                bias="head.bias" if embedding.head_bias else None,
                soft_cap=embedding.soft_cap,
            )
        )

    def _attention(
        self, index: int, path: str, spec: AttentionPart, normal: Value
    ) -> Value:
        rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        qkv = self._linear("qkv", f"{path}.qkv", (normal,), rows, bias=spec.qkv_bias)
        if spec.qk_norm is not None:
            qkv = self._head_norm(path, spec, spec.qk_norm, qkv)
        mixed = self._value("mixed", spec.num_heads * spec.head_dim)
        positions = spec.positions
        alibi = isinstance(positions, Alibi)
        slopes = alibi_slopes(spec.num_heads).tolist() if alibi else ()
        self.instructions.append(
            do.Attention(
                (qkv,),
                (mixed,),
                layer=index,
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                frequencies=tuple(rope_frequencies(positions).tolist()),
                interleaved=isinstance(positions, Rope) and positions.interleaved,
                slopes=tuple(slopes),
                scale=spec.scale,
                soft_cap=spec.soft_cap,
                window=spec.window,
                unified=self._config.unified,
            )
        )
        return mixed

    def _head_norm(
        self, path: str, spec: AttentionPart, norm: Norm, qkv: Value
    ) -> Value:
        normal = self._value("qkv", qkv.columns)
        biased = isinstance(norm, LayerNorm)
        self.instructions.append(
            do.HeadNorm(
                (qkv,),
                (normal,),
                scale=f"{path}.q_norm.scale",
                bias=f"{path}.q_norm.bias" if biased else None,
                key_scale=f"{path}.k_norm.scale",
                key_bias=f"{path}.k_norm.bias" if biased else None,
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                epsilon=norm.epsilon,
                scale_offset=_scale_offset(norm),
            )
        )
        return normal

    def _up(self, path: str, spec: FeedForwardPart, normal: Value) -> Value:
        epilogue = do.Activate(spec.activation)
        if isinstance(spec, GatedMlp):
            epilogue = do.Gate(spec.activation)
        return self._linear(
            "up", path, (normal,), spec.size, bias=spec.bias, epilogue=epilogue
        )

    def _add(
        self, x: Value, path: str, norm: tuple[str, Norm | None], *, bias: bool
    ) -> None:
        """A linear map of `x` and, after its norm or at once, its sum with the stream.

        Args:
            x: what is mapped.
            path: of the linear map.
            norm: path and kind of the norm between, if there is one.
            bias: whether the map has one.
        """
        norm_path, post = norm
        size = self._config.hidden_size
        if post is None:
            reads = x, self._x
            self._x = self._linear("x", path, reads, size, bias=bias, epilogue=do.Add())
        else:
            delta = self._linear("delta", path, (x,), size, bias=bias)
            self._left_over = _LeftOver(delta, norm_path, post)

    def _add_norm(self, path: str, norm: Norm) -> Value:
        """The residual stream, normalised; what is left over is done first."""
        left = self._left_over
        if left is None:
            return self._norm(self._x, path, norm, "normal")
        joins = left.norm == norm and not isinstance(norm, LayerNorm)
        delta = left.delta if joins else self._normalised(left)
        reads = self._x, delta
        normal, self._x = self._value("normal"), self._value("x")
        delta_path = left.path if joins else None
        self._append_norm(reads, (normal, self._x), path, norm, delta_path)
        self._left_over = None
        return normal

    def _add_left_over(self) -> None:
        if self._left_over is not None:
            reads = self._x, self._normalised(self._left_over)
            self._x, self._left_over = self._value("x"), None
            self.instructions.append(do.Sum(reads, (self._x,)))

    def _normalised(self, left: "_LeftOver") -> Value:
        return self._norm(left.delta, left.path, left.norm, "delta")

    def _norm(self, x: Value, path: str, norm: Norm, name: str) -> Value:
        normal = self._value(name)
        self._append_norm((x,), (normal,), path, norm)
        return normal

    def _append_norm(
        self,
        reads: tuple[Value, ...],
        writes: tuple[Value, ...],
        path: str,
        norm: Norm,
        delta_path: str | None = None,
    ) -> None:
        bias = f"{path}.bias" if isinstance(norm, LayerNorm) else None
        self.instructions.append(
            do.Norm(
                reads,
                writes,
                scale=f"{path}.scale",
                bias=bias,
                epsilon=norm.epsilon,
                scale_offset=_scale_offset(norm),
                delta_scale=None if delta_path is None else f"{delta_path}.scale",
            )
        )

    def _linear(
        self,
        name: str,
        path: str,
        reads: tuple[Value, ...],
        columns: int,
        *,
        bias: bool,
        epilogue: Epilogue = None,
    ) -> Value:
        y = self._value(name, columns)
        self.instructions.append(
            do.Linear(
                reads,
                (y,),
                weight=f"{path}.weight",
                bias=f"{path}.bias" if bias else None,
                epilogue=epilogue,
            )
        )
        return y

    def _select(self, x: Value) -> Value:
        selected = self._value(x.name, x.columns)
        self.instructions.append(do.Select((x,), (selected,)))
        return selected

    def _value(self, name: str, columns: int | None = None) -> Value:
        columns = self._config.hidden_size if columns is None else columns
        value = Value(len(self.values), name, columns, self._rows)
        self.values.append(value)
        return value


def _scale_offset(norm: Norm) -> float:
    return 0.0 if isinstance(norm, LayerNorm) else norm.scale_offset
