"""The loop that times GEMMs, compiled for an H200: nothing leaves it or merges."""

import re

import jax
import jax.numpy as jnp
import pytest

from fdjax.kernels.matmul import config, timing
from fdjax.kernels.matmul.timing import Way
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

COPIES, M, N, K = 6, 8, 6144, 4096


@pytest.mark.parametrize(
    ("way", "gemm"),
    [
        ("reference", r"gemm_fusion_dot\S* = .* fusion\("),
        ("flat", r"ffi_call\S* = .* custom-call\("),
        (config.candidates(M, N)[0], r"ffi_call\S* = .* custom-call\("),
    ],
    ids=["reference", "flat", "candidate"],
)
def test_every_gemm_stays_in_the_loop(way: Way, gemm: str):
    x = jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
    weights = [jax.ShapeDtypeStruct((N, K), jnp.bfloat16)] * COPIES
    program = timing.loop(way, rounds=3)
    compiled = compile_for_h200(
        program, x, weights, compiler_options=timing.OPTIONS
    ).as_text()
    assert compiled is not None
    (body,) = re.findall(r"while\(.*body=%?([\w.]+)", compiled)
    computations = {
        text.lstrip("%").partition(" ")[0]: text for text in compiled.split("\n\n")
    }
    assert len(re.findall(gemm, computations[body])) == COPIES
    assert " copy(" not in computations[body]
