"""The rule that chooses among an operation's implementations."""

import logging
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from fdjax import device
from fdjax.errors import Unsupported
from fdjax.kernels import op
from fdjax.kernels.op import Impl, Op


def _add(amount: float) -> Callable[..., jax.Array]:
    def run(x: jax.Array, *, scale: float) -> jax.Array:
        return scale * x + amount

    return run


def _only_vectors(x: jax.Array, *, scale: float) -> str | None:
    del scale
    return None if x.ndim == 1 else f"x has {x.ndim} dimensions, it takes 1"


def _only_small(x: jax.Array, *, scale: float) -> str | None:
    del scale
    return None if x.size <= 4 else f"x has {x.size} elements, it takes 4"


@pytest.fixture
def toy() -> Op[..., jax.Array]:
    """Adds 1 (vectors), 2 (small arrays) or 0 (the reference)."""
    impls = {
        "first": Impl(_add(1), _only_vectors),
        "second": Impl(_add(2), _only_small),
    }
    return Op("toy", _add(0), impls)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    monkeypatch.setattr(op, "_warned", set[tuple[str, str]]())


VECTOR, SMALL, LARGE = jnp.zeros(9), jnp.zeros((2, 2)), jnp.zeros((3, 3))


@pytest.mark.parametrize(("x", "added"), [(VECTOR, 1), (SMALL, 2), (LARGE, 0)])
def test_first_that_does_not_refuse_serves(
    toy: Op[..., jax.Array], x: jax.Array, added: int
):
    assert (toy(x, scale=1.0) == added).all()


def test_names_end_with_the_reference(toy: Op[..., jax.Array]):
    assert toy.names == ("first", "second", "reference")


def test_explain_names_the_choice_and_every_refusal_before_it(toy: Op[..., jax.Array]):
    assert toy.explain(VECTOR, scale=1.0) == "toy: first"
    assert toy.explain(LARGE, scale=1.0) == (
        "toy: reference; not first: x has 2 dimensions, it takes 1; "
        "not second: x has 9 elements, it takes 4"
    )


def test_using_forces_inside_the_block_only(toy: Op[..., jax.Array]):
    with toy.using("reference"):
        assert toy(VECTOR, scale=1.0)[0] == 0
        with toy.using("first"):
            assert toy(VECTOR, scale=1.0)[0] == 1
        assert toy(VECTOR, scale=1.0)[0] == 0
    assert toy(VECTOR, scale=1.0)[0] == 1


def test_using_concerns_one_operation(toy: Op[..., jax.Array]):
    other = Op("other", _add(0), {"first": Impl(_add(1), _only_vectors)})
    with toy.using("reference"), other.using("reference"):
        assert toy(VECTOR, scale=1.0)[0] == 0
    with toy.using("reference"):
        assert other(VECTOR, scale=1.0)[0] == 1


def test_forced_implementation_that_refuses_is_unsupported(toy: Op[..., jax.Array]):
    with (
        toy.using("second"),
        pytest.raises(
            Unsupported, match=r"toy\[second\]: x has 9 elements, it takes 4"
        ),
    ):
        toy(LARGE, scale=1.0)


def test_unknown_implementation_is_a_value_error(toy: Op[..., jax.Array]):
    with pytest.raises(ValueError, match="no implementation 'third'; it has first, s"):
        toy.using("third")


def test_the_forced_implementation_is_part_of_the_jit_cache_key(
    toy: Op[..., jax.Array],
):
    traces: list[int] = []

    @jax.jit
    def double(x: jax.Array) -> jax.Array:
        traces.append(1)
        return toy(x, scale=2.0)

    assert double(VECTOR)[0] == 1
    with toy.using("reference"):
        assert double(VECTOR)[0] == 0
        assert len(traces) == 2
    assert double(VECTOR)[0] == 1
    assert len(traces) == 2


@pytest.mark.usefixtures("on_gpu")
def test_falling_back_on_a_gpu_warns_once_a_signature(
    toy: Op[..., jax.Array], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, logger=op.__name__):
        toy(LARGE, scale=1.0)
        toy(LARGE, scale=1.0)
        assert len(caplog.records) == 1
        assert "first: x has 2 dimensions" in caplog.text
        toy(jnp.zeros((4, 4)), scale=1.0)
        assert len(caplog.records) == 2


def test_falling_back_on_a_cpu_is_silent(
    toy: Op[..., jax.Array], caplog: pytest.LogCaptureFixture
):
    toy(LARGE, scale=1.0)
    assert not caplog.records


@pytest.mark.usefixtures("on_gpu")
def test_asking_for_the_reference_is_silent(
    toy: Op[..., jax.Array], caplog: pytest.LogCaptureFixture
):
    with toy.using("reference"):
        toy(LARGE, scale=1.0)
    Op("plain", _add(0))(LARGE, scale=1.0)
    assert not caplog.records


# --- An order for each call -----------------------------------------------------------


def _by_size(x: jax.Array, *, scale: float) -> tuple[str, ...]:
    del scale
    return ("second", "first") if x.size < 9 else ("reference", "first")


@pytest.mark.usefixtures("on_gpu")
def test_an_operation_orders_its_implementations_for_each_call(
    caplog: pytest.LogCaptureFixture,
):
    impls = {
        "first": Impl(_add(1), _only_vectors),
        "second": Impl(_add(2), _only_small),
    }
    ordered = Op("ordered", _add(0), impls, order=_by_size)
    assert ordered.explain(jnp.zeros(4), scale=1.0) == "ordered: second"
    assert ordered.explain(jnp.zeros(5), scale=1.0).startswith("ordered: first; not")
    with caplog.at_level(logging.WARNING):
        assert float(ordered(VECTOR, scale=1.0)[0]) == 0
    assert not caplog.records  # the reference was wanted, not fallen back to
    with ordered.using("first"):
        assert float(ordered(VECTOR, scale=1.0)[0]) == 1
