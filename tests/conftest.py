"""What holds for all tests: the CPU by default, and no silent promotion."""

import os
from typing import TYPE_CHECKING

import pytest

# JAX reads it when it is imported; nothing above and at the top may do that.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from fdjax import LLM
    from fdjax.engine.engine import Engine


def pytest_configure() -> None:
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def llm() -> "LLM":
    """The shipped model, in float32, for up to 4 sequences of 128 tokens."""
    from fdjax import LLM

    return LLM(max_model_len=128, max_num_seqs=4)


@pytest.fixture(scope="session")
def engine() -> "Engine":
    """A random Llama of 3 narrow layers, for up to 4 sequences of 32 tokens."""
    from tests.support.engines import tiny_engine

    return tiny_engine()
