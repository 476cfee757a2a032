"""Calls of `matmul` and `gated_matmul` that real models make."""

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import Case, Tag, noise, struct
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.weight import Dense
from fdjax.notation import Array

# The GEMMs of a Llama-3-8B decode step: name, [N, K], whether the result is float32.
LLAMA3_8B = (
    ("qkv", 6144, 4096, False),
    ("out", 4096, 4096, False),
    ("gate_up", 28672, 4096, False),
    ("down", 4096, 14336, False),
    ("head", 128256, 4096, True),
)
BENCH_M = (1, 2, 4, 8, 16, 32, 64)


def _case(
    name: str,
    *tags: Tag,
    m: int,
    n: int,
    k: int,
    bias: bool = False,
    residual: bool = False,
    float32: bool = False,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> Case[Matmul]:
    call = Matmul(
        struct(m, k, dtype=dtype),
        Dense(struct(n, k, dtype=dtype)),
        struct(n, dtype=dtype) if bias else None,
        struct(m, n, dtype=dtype) if residual else None,
        activation=None,
        out_dtype=jnp.float32 if float32 else dtype,
    )
    return Case(name, call, frozenset(tags))


# fmt: off
CASES: tuple[Case[Matmul], ...] = (
    *(_case(f"llama3_8b_{name}_m{m}", "tune", "bench", m=m, n=n, k=k, float32=float32)
      for name, n, k, float32 in LLAMA3_8B for m in BENCH_M),
    _case("llama3_8b_qkv", m=5, n=6144, k=4096),
    _case("llama3_8b_out_residual", m=33, n=4096, k=4096, residual=True),
    _case("llama3_8b_down_residual", m=1, n=4096, k=14336, residual=True),
    _case("llama3_8b_head", m=3, n=128256, k=4096, float32=True),
    _case("tales_5m_head", "ci", m=1, n=2048, k=256, float32=True),
    _case("qwen2_0p5b_qkv", "ci", m=7, n=1152, k=896, bias=True),
    _case("opt_125m_down", "ci", m=2, n=768, k=3072, bias=True, residual=True,
          dtype=jnp.float16),
    # Multiples of 8 and of nothing more.
    _case("odd", "ci", m=17, n=1032, k=4104, bias=True, residual=True),
    _case("odd_half", "ci", m=64, n=1032, k=4104, dtype=jnp.float16, float32=True),
    _case("tiny", "ci", m=3, n=8, k=8, residual=True),
    _case("short", "ci", m=9, n=200, k=72, bias=True, dtype=jnp.float16),
)
# fmt: on


def arguments(case: Case[Matmul], *, seed: int = 0) -> Matmul:
    """A case's call with normal numbers, so that results are of the size of one."""
    random = np.random.default_rng(seed)
    k = case.call.x.shape[1]

    def draw(like: Array) -> Array:
        return noise(random, like, scale=k**-0.25 if like.shape[-1] == k else 1.0)

    return jax.tree.map(draw, case.call)
