"""The rule that chooses among an operation's implementations."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import device
from fdjax.errors import Unsupported
from fdjax.kernels import op, reporting
from fdjax.kernels.op import Impl, Op
from fdjax.kernels.reporting import recording
from fdjax.pytree import pytree, static


@pytree
class Call:
    """One call of an operation that scales, and adds what tells who served it."""

    x: jax.Array
    scale: float = static(default=1.0)


def _add(amount: float) -> Callable[[Call], jax.Array]:
    return lambda call: call.scale * call.x + amount


def _only_vectors(call: Call) -> str | None:
    dimensions = call.x.ndim
    return None if dimensions == 1 else f"x has {dimensions} dimensions, it takes 1"


def _only_small(call: Call) -> str | None:
    size = call.x.size
    return None if size <= 4 else f"x has {size} elements, it takes 4"


type Toy = Op[Call, jax.Array]


@pytest.fixture
def toy() -> Toy:
    """Adds 1 (vectors), 2 (small arrays) or 0 (the reference)."""
    impls = {
        "first": Impl(_add(1), _only_vectors),
        "second": Impl(_add(2), _only_small),
    }
    return Op("toy", _add(0), impls)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    monkeypatch.setattr(reporting, "_warned", set[tuple[str, str]]())


VECTOR, SMALL, LARGE = (Call(jnp.zeros(shape)) for shape in (9, (2, 2), (3, 3)))


@pytest.mark.parametrize(("call", "added"), [(VECTOR, 1), (SMALL, 2), (LARGE, 0)])
def test_first_that_does_not_refuse_serves(toy: Toy, call: Call, added: int):
    assert (toy(call) == added).all()


def test_names_end_with_the_reference(toy: Toy):
    assert toy.names == ("first", "second", "reference")


def test_explain_names_the_choice_and_every_refusal_before_it(toy: Toy):
    assert toy.explain(VECTOR) == "toy: first"
    assert toy.explain(LARGE) == (
        "toy: reference; not first: x has 2 dimensions, it takes 1; "
        "not second: x has 9 elements, it takes 4"
    )


def test_explain_names_what_callers_do_instead_of_the_reference():
    op = Op("op", _add(0), {"first": Impl(_add(1), _only_vectors)}, otherwise="by hand")
    assert op.explain(VECTOR) == "op: first"
    assert op.explain(LARGE).startswith("op: by hand; not first: x has 2 dimensions")
    assert op.choice(LARGE) == "reference" and op.if_fast(LARGE) is None


def test_using_forces_inside_the_block_only(toy: Toy):
    with toy.using("reference"):
        assert toy(VECTOR)[0] == 0
        with toy.using("first"):
            assert toy(VECTOR)[0] == 1
        assert toy(VECTOR)[0] == 0
    assert toy(VECTOR)[0] == 1


def test_using_concerns_one_operation(toy: Toy):
    other = Op("other", _add(0), {"first": Impl(_add(1), _only_vectors)})
    with toy.using("reference"), other.using("reference"):
        assert toy(VECTOR)[0] == 0
    with toy.using("reference"):
        assert other(VECTOR)[0] == 1


def test_forced_implementation_that_refuses_is_unsupported(toy: Toy):
    with (
        toy.using("second"),
        pytest.raises(
            Unsupported, match=r"toy\[second\]: x has 9 elements, it takes 4"
        ),
    ):
        toy(LARGE)


def test_unknown_implementation_is_a_value_error(toy: Toy):
    with pytest.raises(ValueError, match="no implementation 'third'; it has first, s"):
        toy.using("third")


def test_the_forced_implementation_is_part_of_the_jit_cache_key(
    toy: Toy,
):
    traces: list[int] = []

    @jax.jit
    def double(x: jax.Array) -> jax.Array:
        traces.append(1)
        return toy(Call(x, scale=2.0))

    assert double(VECTOR.x)[0] == 1
    with toy.using("reference"):
        assert double(VECTOR.x)[0] == 0
        assert len(traces) == 2
    assert double(VECTOR.x)[0] == 1
    assert len(traces) == 2


@pytest.mark.usefixtures("on_gpu")
def test_falling_back_on_a_gpu_warns_once_a_signature(
    toy: Toy, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, logger=reporting.__name__):
        toy(LARGE)
        toy(dataclasses.replace(LARGE, scale=2.0))
        assert len(caplog.records) == 1
        assert "first: x has 2 dimensions" in caplog.text
        toy(Call(jnp.zeros((4, 4))))
        assert len(caplog.records) == 2


def test_falling_back_on_a_cpu_is_silent(toy: Toy, caplog: pytest.LogCaptureFixture):
    toy(LARGE)
    assert not caplog.records


@pytest.mark.usefixtures("on_gpu")
def test_asking_for_the_reference_is_silent(toy: Toy, caplog: pytest.LogCaptureFixture):
    with toy.using("reference"):
        toy(LARGE)
    Op("plain", _add(0))(LARGE)
    assert not caplog.records


def test_shapes_stand_in_for_arrays(toy: Toy):
    struct: Any = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    assert toy.explain(Call(struct)) == toy.explain(LARGE)
    assert toy.choice(Call(struct)) == "reference"


def test_a_call_is_an_argument_of_jit(toy: Toy):
    doubled = dataclasses.replace(VECTOR, scale=2.0)
    assert (jax.jit(toy)(doubled) == 1).all()


# --- An order for each call -----------------------------------------------------------


def _by_size(call: Call) -> tuple[str, ...]:
    return ("second", "first") if call.x.size < 9 else ("reference", "first")


@pytest.mark.usefixtures("on_gpu")
def test_an_operation_orders_its_implementations_for_each_call(
    caplog: pytest.LogCaptureFixture,
):
    impls = {
        "first": Impl(_add(1), _only_vectors),
        "second": Impl(_add(2), _only_small),
    }
    ordered = Op("ordered", _add(0), impls, order=_by_size)
    assert ordered.explain(Call(jnp.zeros(4))) == "ordered: second"
    assert ordered.explain(Call(jnp.zeros(5))).startswith("ordered: first; not")
    with caplog.at_level(logging.WARNING):
        assert float(ordered(VECTOR)[0]) == 0
    assert not caplog.records  # the reference was wanted, not fallen back to
    with ordered.using("first"):
        assert float(ordered(VECTOR)[0]) == 1


# --- The same bits in any batch -------------------------------------------------------


def _with_invariant(
    impl: Impl[Call, jax.Array], *, batch_invariant: bool = False
) -> Toy:
    impls = {"fast": Impl(_add(1), lambda call: None), "steady": impl}
    return Op("toy", _add(0), impls, batch_invariant=batch_invariant)


def test_where_it_is_wanted_only_batch_invariant_implementations_serve():
    toy = _with_invariant(Impl(_add(2), _only_vectors, batch_invariant=True))
    assert toy.choice(VECTOR) == "fast"
    with op.batch_invariant():
        assert toy.explain(VECTOR) == (
            "toy: steady; not fast: its bits depend on the batch"
        )
        with (
            pytest.raises(Unsupported, match=r"toy\[fast\]: its bits"),
            toy.using("fast"),
        ):
            toy(VECTOR)
        with pytest.raises(
            Unsupported, match=r"toy has no batch-invariant .* steady: x"
        ):
            toy(LARGE)


def test_what_is_wanted_is_a_boolean():
    wanted: Any
    for wanted in ("no", 1, None):
        with pytest.raises(TypeError, match="batch_invariant: wanted is "):
            op.batch_invariant(wanted)


def test_a_definition_may_be_batch_invariant_itself():
    refusing = Impl(_add(2), _only_vectors, batch_invariant=True)
    toy = _with_invariant(refusing, batch_invariant=True)
    with op.batch_invariant():
        assert toy.choice(LARGE) == "reference"


def test_what_is_wanted_is_part_of_what_jit_keeps():
    run = jax.jit(_with_invariant(Impl(_add(2), _only_vectors, batch_invariant=True)))
    assert (run(VECTOR) == 1).all()
    with op.batch_invariant():
        assert (run(VECTOR) == 2).all()
    assert (run(VECTOR) == 1).all()


def test_an_implementation_on_demand_serves_only_where_it_is_wanted():
    toy = Op(
        "toy",
        _add(0),
        {"steady": Impl(_add(2), _only_vectors, batch_invariant=True, on_demand=True)},
    )
    assert toy.explain(VECTOR) == "toy: reference"
    with toy.using("steady"):
        assert (toy(VECTOR) == 2).all()
    with op.batch_invariant():
        assert (toy(VECTOR) == 2).all()


def test_fast_is_whatever_is_not_the_definition(toy: Toy):
    assert toy.fast(VECTOR) and toy.fast(SMALL)
    assert not toy.fast(LARGE)
    with toy.using("reference"):
        assert not toy.fast(VECTOR)


@pytest.mark.usefixtures("on_gpu")
def test_choices_are_recorded_where_that_is_wanted(
    toy: Toy, caplog: pytest.LogCaptureFixture
):
    toy(VECTOR)
    with recording() as lines:
        toy(SMALL)
        with recording() as inner:
            toy(LARGE)
    toy(VECTOR)
    assert lines == [toy.explain(SMALL)]
    assert inner == [toy.explain(LARGE)]
    assert not caplog.records  # a warning would say it twice


def test_what_ends_a_recording_leaves_nothing_behind(toy: Toy):
    with pytest.raises(KeyError), recording() as lines:
        raise KeyError
    toy(VECTOR)
    assert lines == []


def test_what_serves_says_what_a_call_needs_besides():
    """An implementation that says nothing has 0."""
    says = Impl(_add(1), _only_vectors, workspace=lambda call: 2 * call.x.size)
    impls = {"says": says, "silent": Impl(_add(2), _only_small)}
    toy = Op("toy", _add(0), impls, workspace=lambda call: 100 * call.x.size)
    assert toy.workspace_bytes(VECTOR) == 18
    assert toy.workspace_bytes(SMALL) == 0
    assert toy.workspace_bytes(LARGE) == 900
    with toy.using("silent"), pytest.raises(Unsupported, match="9 elements"):
        toy.workspace_bytes(VECTOR)
    assert Op("toy", _add(0)).workspace_bytes(LARGE) == 0
