"""The most likely tokens, found one by one as on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fdjax import device
from fdjax.generate import most_likely


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "platform", lambda: "gpu")


def _logits(kind: str) -> jax.Array:
    random = np.random.default_rng(0)
    logits = random.normal(size=(5, 301)).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits * 2) / 2
    if kind == "few":  # fewer that may come than are asked for
        logits[:, random.permutation(301)[3:]] = -np.inf
        logits[4] = -np.inf
    return jnp.asarray(logits)


@pytest.mark.parametrize("kind", ["any", "ties", "few"])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_they_are_those_of_a_sort(kind: str, count: int):
    logits = _logits(kind)
    values, tokens = jax.jit(most_likely.most_likely, static_argnums=1)(logits, count)
    expected = lax.top_k(logits, count)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(tokens, expected[1])


def test_many_are_sorted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(most_likely, "FEW", 4)

    def program(count: int) -> str:  # JAX remembers traces of the function itself
        found = jax.make_jaxpr(lambda x: most_likely.most_likely(x, count))
        return str(found(_logits("any")))

    assert "top_k" in program(5)
    assert "top_k" not in program(4)
