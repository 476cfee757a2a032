import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fdjax.models import load
from tests.support.greedy import greedy
from tests.support.hf_model import FIXTURES, TALES
from tests.support.numerics import relative_error

EXPECTED = load_file(FIXTURES / TALES.name / "expected.safetensors")


def _greedy(
    dtype: jax.typing.DTypeLike, *, rows: int, page_size: int
) -> tuple[np.ndarray, np.ndarray]:
    return greedy(
        load(TALES, dtype=dtype),
        EXPECTED["prompts"][:rows],
        EXPECTED["lengths"][:rows],
        new_tokens=EXPECTED["tokens"].shape[1],
        page_size=page_size,
    )


@pytest.mark.parametrize("page_size", [8, 64])
def test_float32_tokens_equal_transformers(page_size: int):
    rows = len(EXPECTED["lengths"])
    logits, tokens = _greedy(jnp.float32, rows=rows, page_size=page_size)
    ends = np.cumsum(EXPECTED["lengths"]) - 1
    assert relative_error(logits[ends], EXPECTED["last_logits"]) <= 1e-4
    np.testing.assert_array_equal(tokens, EXPECTED["tokens"])


def test_bfloat16_tokens_have_not_changed():
    golden = EXPECTED["tokens_bfloat16"]
    _, tokens = _greedy(jnp.bfloat16, rows=len(golden), page_size=16)
    np.testing.assert_array_equal(tokens, golden)


@pytest.mark.gpu
def test_float32_tokens_of_a_gpu_equal_transformers():
    rows = len(EXPECTED["lengths"])
    _, tokens = _greedy(jnp.float32, rows=rows, page_size=16)
    np.testing.assert_array_equal(tokens, EXPECTED["tokens"])


@pytest.mark.gpu
def test_bfloat16_tokens_of_a_gpu_equal_the_cpus():
    golden = EXPECTED["tokens_bfloat16"]
    _, tokens = _greedy(jnp.bfloat16, rows=len(golden), page_size=16)
    np.testing.assert_array_equal(tokens, golden)
