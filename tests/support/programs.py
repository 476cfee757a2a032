"""Small models of every family with sizes that kernels take, and batches for them."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.config import Attention, LayerSpec, Rope
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.embedding import OP as EMBEDDING
from fdjax.kernels.paged import KVCache, PageView
from fdjax.kernels.shared_prefix import Group, plan_prefixes, plan_prompts
from fdjax.kernels.weight import Weight
from fdjax.layers import Batch, beam_batch, decode_batch, mixed_batch, packed_batch
from fdjax.models import ModelConfig, random_weights
from fdjax.models.checkpoint import read_config
from fdjax.models.parameters import parameters_of
from fdjax.models.program import LayerProgram, program_of
from fdjax.models.program.run import run_body
from fdjax.notation import Array
from tests.support.engines import FIXTURES

HIDDEN, HEADS, HEAD_DIM, INTERMEDIATE = 512, 8, 64, 704
PAGE_SIZE, WIDTH = 16, 6


def config_of(
    name: str,
    *,
    unified: UnifiedMax | None = None,
    head_dim: int = HEAD_DIM,
    width: int = WIDTH,
) -> ModelConfig:
    """A fixture's model with larger sizes, three layers, and all else as it is.

    Args:
        name: of the fixture.
        unified: the maximum of its softmax.
        head_dim: the size of its heads.
        width: pages of a row, for whose tokens there are positions.
    """
    small = ModelConfig.from_hf(read_config(FIXTURES / name))
    layers = tuple(
        _layer(small.layers[i % small.num_layers], head_dim) for i in range(3)
    )
    embedding = small.embedding
    if embedding.positions is not None:
        table = replace(embedding.positions, size=PAGE_SIZE * width)
        embedding = replace(embedding, positions=table)
    return replace(
        small, hidden_size=HIDDEN, layers=layers, embedding=embedding, unified=unified
    )


def _layer(spec: LayerSpec, head_dim: int) -> LayerSpec:
    mlp = replace(spec.mlp, size=INTERMEDIATE)
    return replace(spec, attention=_attention(spec.attention, head_dim), mlp=mlp)


def _attention(spec: Attention, head_dim: int) -> Attention:
    positions = spec.positions
    if isinstance(positions, Rope):
        partial = positions.rotary_dim < spec.head_dim
        positions = replace(
            positions, rotary_dim=head_dim // 2 if partial else head_dim
        )
    own = spec.num_heads == spec.num_kv_heads
    return replace(
        spec,
        num_heads=HEADS,
        num_kv_heads=HEADS if own else 2,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        positions=positions,
        window=None if spec.window is None else 20,
    )


def call_of(
    config: ModelConfig,
    kind: str,
    rows: int,
    *,
    dtype: Any = jnp.float32,
    width: int = WIDTH,
) -> LayerProgram:
    """A call of a model with made-up weights and keys.

    Args:
        config: the model.
        kind: "decode", "prefill", "mixed", or "chunks": mixed without rows that decode;
            "drafts": rows of 4, 2 and 2 tokens, all of them wanted; "shared": rows that
            decode and share pages; "beams": two groups of rows; "separate": likewise,
            and nothing is planned for their prompts.
        rows: how many, or how many decode; of prompts and drafts there are three.
        dtype: of weights and keys.
        width: pages that a row may have, and some rows that decode fill.
    """
    held = _held(config, np.dtype(dtype))
    num_pages = (rows + 3) * width
    batch = _batch(kind, rows, num_pages, width, config.layers[0].attention)
    layout = config.kv_layout(num_pages=num_pages, page_size=PAGE_SIZE, dtype=dtype)
    values = np.random.default_rng(0).normal(size=layout.shape)
    kv = KVCache.page_major(jnp.asarray(values, layout.dtype))
    program = program_of(config, selects=batch.wanted is not None)
    return LayerProgram(
        kv,
        batch,
        tuple(held[path] for path in program.body_parameters),
        program,
    )


@functools.cache
def _held(config: ModelConfig, dtype: np.dtype) -> dict[str, Array | Weight]:
    return parameters_of(random_weights(config, dtype=dtype, seed=1))


def _batch(kind: str, rows: int, num_pages: int, width: int, heads: Attention) -> Batch:
    random = np.random.default_rng(rows)
    room = width * PAGE_SIZE
    table = jnp.asarray(random.permutation(num_pages).reshape(-1, width), jnp.int32)
    if kind == "shared":
        return _sharing(rows, table, heads)
    if kind in ("beams", "separate"):
        batch = _beams(rows // 2, table, heads)
        if kind == "beams" or batch.beams is None:
            return batch
        return replace(batch, beams=replace(batch.beams, prefixes=None))
    if kind == "decode":
        lengths = random.integers(0, room, rows)
        lengths[0] = room - 1
        tokens = random.integers(0, 40, rows)
        return decode_batch(
            jnp.asarray(tokens, jnp.int32),
            jnp.asarray(lengths, jnp.int32),
            table[:rows],
            page_size=PAGE_SIZE,
        )
    starts, lengths = [0, 17, 30], [41, 18, 63]
    if kind == "drafts":
        starts, lengths = [37, 16, 61], [41, 18, 63]
    if kind in ("prefill", "drafts"):
        view = PageView.packed(table[:3], _ints(lengths), _ints(starts))
        tokens = _ints(random.integers(0, 40, sum(lengths) - sum(starts) + 5))
        batch = packed_batch(
            tokens, view.lengths, table[:3], view.first_positions, page_size=PAGE_SIZE
        )
        every, last = jnp.arange(8, dtype=jnp.int32), view.last_tokens(tokens.size)
        return replace(batch, wanted=every if kind == "drafts" else last)
    held = random.integers(0, room - 1, rows) if kind == "mixed" else np.zeros(rows)
    decodes = np.zeros(rows + 3, bool)
    if kind == "mixed":
        decodes[1 : rows + 1] = True
    before = np.concatenate([starts[:1], held, starts[1:]])
    after = np.concatenate([lengths[:1], held + decodes[1:-2], lengths[1:]])
    view = PageView.packed(table, _ints(after), _ints(before))
    tokens = _ints(random.integers(0, 40, int(after.sum() - before.sum()) + 3))
    batch = mixed_batch(
        tokens,
        view,
        _ints([0, rows + 1, rows + 2, rows + 3]),
        jnp.asarray(decodes) if kind == "mixed" else None,
        page_size=PAGE_SIZE,
    )
    return replace(batch, wanted=view.last_tokens(tokens.size))


def _sharing(rows: int, table: jax.Array, heads: Attention) -> Batch:
    """All rows but the last share two pages, and some of them one more."""
    random, inner = np.random.default_rng(rows), max(rows // 2, 2)
    table = table[:rows].at[:-1, :2].set(table[0, :2])
    table = table.at[:inner, 2].set(table[0, 2])
    of_all = Group(tuple(range(rows - 1)), 0, 2 * PAGE_SIZE, 0)
    of_some = Group(tuple(range(inner)), 2 * PAGE_SIZE, 3 * PAGE_SIZE, 1)
    prefixes = plan_prefixes((of_all, of_some), rows=rows, **_head_counts(heads))
    lengths = random.integers(3 * PAGE_SIZE, (WIDTH - 1) * PAGE_SIZE, rows)
    tokens = _ints(random.integers(0, 40, rows))
    return decode_batch(tokens, _ints(lengths), table, prefixes, page_size=PAGE_SIZE)


def _beams(width: int, table: jax.Array, heads: Attention) -> Batch:
    """Two groups, whose beams have followed one another."""
    random, rows = np.random.default_rng(width), 2 * width
    prompts, room = [3 * PAGE_SIZE - 5, PAGE_SIZE + 1], 2 * PAGE_SIZE
    prefixes = plan_prompts(prompts, width=width, **_head_counts(heads))
    origins = random.integers(0, width, (rows, room))
    lengths = _ints([room - 1] * width + [4] * width)
    origins[np.arange(rows), lengths] = np.arange(rows) % width
    view = BeamView(
        table[rows : rows + 2, 2:5], _ints(prompts), _ints(origins), prefixes
    )
    tokens = _ints(random.integers(0, 40, rows))
    return beam_batch(tokens, lengths, table[:rows, :2], view, page_size=PAGE_SIZE)


def _head_counts(heads: Attention) -> dict[str, int]:
    group = heads.num_heads // heads.num_kv_heads
    return {"num_kv_heads": heads.num_kv_heads, "group": group}


def defined(call: LayerProgram) -> Any:
    """What the definition computes of it on the CPU, in float32."""

    def widened(leaf: Any) -> Any:
        floats = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(jnp.float32) if floats else leaf

    cpu = jax.devices("cpu")[0]
    # Of the operations of the definition it is the one that takes float32 on a GPU.
    with jax.default_device(cpu), EMBEDDING.using("reference"):
        wide = jax.tree.map(widened, jax.device_put(call, cpu))
        return jax.tree.map(np.asarray, jax.jit(run_body)(wide))


def _ints(values: Any) -> jax.Array:
    return jnp.asarray(values, jnp.int32)
