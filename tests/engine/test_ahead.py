"""Programs that are compiled beside each other are those that run."""

import contextlib
import gc
import pathlib
import threading
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
import pytest
from jax import monitoring

from fdjax.engine.ahead import Ahead, Collected, Lower, compiled, default_threads
from fdjax.engine.in_turn import InTurn
from fdjax.engine.warm_up import warm_up
from fdjax.generate.params import SamplingParams
from fdjax.kernels.op import Impl, Op, batch_invariant
from fdjax.serve.compilation_cache import counting
from tests.support.engines import run, shallow_model, tiny_engine
from tests.support.kept_programs import keeping

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The thread of each program that XLA compiles; none is kept."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event == COMPILED:
            found.append(threading.current_thread().name)

    monitoring.register_event_duration_secs_listener(listen)
    with keeping(None):
        yield found
    monitoring.unregister_event_duration_listener(listen)


def test_programs_are_compiled_by_threads_and_counted_in_order():
    names: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def compile_one(name: str) -> None:
        names.append(threading.current_thread().name)
        if name == "slow":
            begun.set()
            assert may_end.wait(60)

    def lower(name: str) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return types.SimpleNamespace(compile=lambda: compile_one(name))

    lowerings = [lambda: lower("slow"), None, lambda: lower("quick")]
    counts = compiled(lowerings, threads=2)
    assert [next(counts), next(counts), next(counts)] == [0, 0, 0]
    assert begun.wait(60)
    may_end.set()
    assert list(counts) == [1, 2, 3]
    assert all(name.startswith("compile_") for name in names) and len(names) == 2


def test_programs_that_are_kept_are_not_compiled_again(tmp_path: pathlib.Path):
    def tripled() -> list[Lower | None]:
        return [lambda: jax.jit(lambda x: x * 3.25).lower(1.0)]

    with keeping(tmp_path), counting() as num_compiled:
        list(compiled(tripled(), threads=2))
        assert num_compiled() == 1
        jax.clear_caches()
        assert list(compiled(tripled(), threads=2))[-1] == 1
        assert num_compiled() == 1


def test_a_collected_call_does_not_run_and_then_does_not_compile(
    compilations: list[str],
):
    ahead, doubled = Ahead(), jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jax.device_put(21.0)
    with ahead.collecting() as lowerings, pytest.raises(Collected):
        ahead.of(doubled)(x)
    assert not compilations and not x.is_deleted()
    assert list(compiled(lowerings, threads=2))[-1] == 1
    assert len(compilations) == 1
    assert float(ahead.of(doubled)(x)) == 42 and x.is_deleted()
    assert len(compilations) == 1


def test_a_collected_call_keeps_no_operand_but_those_that_stay():
    """A server's rows would be there twice: of 256 the second were 187 MiB."""
    ahead, first, second = Ahead(), jax.device_put(1.0), jax.device_put(2.0)
    kept = weakref.ref(first), weakref.ref(second)
    with ahead.collecting() as lowerings, contextlib.suppress(Collected):
        ahead.of(jax.jit(lambda x, y: x + y), stays=1)(first, second)
    del first, second
    assert kept[0]() is not None and kept[1]() is None
    assert len(lowerings) == 1


def test_an_error_while_compiling_is_told_and_ends_the_others(compilations: list[str]):
    def broken() -> jax.stages.Lowered:
        raise RuntimeError("no room")

    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.raises(RuntimeError, match="no room"):
        list(compiled([lambda: lowered, broken, lambda: lowered], threads=2))
    assert len(compilations) <= 1


@pytest.mark.parametrize("cores", [(1, 0), (2, 1), (16, 8), (64, 8), (None, 0)])
def test_threads_leave_half_of_the_cores(
    cores: tuple[int | None, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.cpu_count", lambda: cores[0])
    assert default_threads() == cores[1]


@contextlib.contextmanager
def _on_a_device_and_precisely() -> Generator[None]:
    device = jax.default_device(jax.devices()[0])
    with device, jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize(
    "context",
    [
        contextlib.nullcontext,
        batch_invariant,
        _on_a_device_and_precisely,
    ],
    ids=["none", "invariant", "device and precision"],
)
def test_an_engine_warms_up_by_as_many_programs_either_way(
    compilations: list[str], context: Callable[[], AbstractContextManager[Any]]
):
    """The first engine compiles, too, what is the same for all of one shape."""
    counts: list[tuple[int, int]] = []
    for threads in (0, 0, 3):
        told: list[int] = []
        engine = tiny_engine(
            shallow_model(), max_num_seqs=1, max_model_len=16, page_size=16
        )
        compilations.clear()
        with context():
            done = warm_up(
                engine.executor,
                engine.buckets,
                engine.plan.layout,
                [SamplingParams(temperature=0.0)],
                longest=16,
                on_progress=lambda done, in_all, told=told: told.append(done),
                threads=threads,
            )
        # Compiling ahead tells of itself, and what runs then does not begin anew.
        assert told == sorted(told) and told[-1] == done
        assert len(told) > done + 1 if threads else told == list(range(done + 1))
        counts.append((done, len(compilations)))
        by_threads = {name.rpartition("_")[0] for name in compilations} == {"compile"}
        assert by_threads == (threads > 0)
    assert counts[1] == counts[2]


def test_calls_run_in_turn_beside_their_caller():
    executor = tiny_engine(shallow_model()).executor
    ran: list[tuple[int, str]] = []

    def call(number: int) -> Callable[[], None]:
        return lambda: ran.append((number, threading.current_thread().name))

    with InTurn(executor, [call(0), call(1), call(2), call(3)]) as runs:
        runs.begin(2)
        runs.begin(1)  # has begun
        runs.begin(3)
    assert [number for number, _ in ran] == [0, 1, 2]
    assert {name.rpartition("_")[0] for _, name in ran} == {"run"}


def test_each_call_waits_for_the_end_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
):
    executor, events = tiny_engine(shallow_model()).executor, list[str]()
    monkeypatch.setattr(
        "fdjax.engine.in_turn.wait_for", lambda _: events.append("wait")
    )
    with InTurn(executor, [lambda: events.append("call")] * 2) as runs:
        runs.begin(2)
    assert events == ["wait", "call", "wait", "call", "wait"]


def test_a_call_that_fails_is_told_and_those_behind_it_are_left_out():
    executor, ran = tiny_engine(shallow_model()).executor, list[int]()
    may_fail = threading.Event()

    def fail() -> None:
        assert may_fail.wait(60)
        raise RuntimeError("no room")

    with (
        pytest.raises(RuntimeError, match="no room"),
        InTurn(executor, [fail, lambda: ran.append(1)]) as runs,
    ):
        runs.begin(1)
        may_fail.set()
        while True:
            runs.begin(1)
    with (
        pytest.raises(RuntimeError, match="no room"),
        InTurn(executor, [fail, lambda: ran.append(1)]) as runs,
    ):
        may_fail.clear()
        runs.begin(2)
        threading.Timer(0.2, may_fail.set).start()  # when who asked is done
    assert not ran


def test_calls_that_have_not_begun_are_left_out_when_who_asked_fails():
    executor, ran = tiny_engine(shallow_model()).executor, list[int]()
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        has_begun.set()
        assert may_end.wait(60)
        ran.append(0)

    with (
        pytest.raises(KeyError),
        InTurn(executor, [wait, lambda: ran.append(1)]) as runs,
    ):
        runs.begin(2)
        assert has_begun.wait(60)
        threading.Timer(0.2, may_end.set).start()
        raise KeyError
    assert ran == [0]  # which was under way


def test_a_call_that_fails_leaves_the_executor_to_nobody():
    """Its memory is free when the error has been dealt with, for a smaller engine."""
    executor = tiny_engine(shallow_model()).executor
    kept = weakref.ref(executor)

    def fail() -> None:
        raise RuntimeError("no room")

    gc.collect()
    gc.disable()
    try:
        with (
            pytest.raises(RuntimeError, match="no room"),
            InTurn(executor, [fail]) as runs,
        ):
            runs.begin(1)
        del executor, runs
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("context", ["forced", "invariant"])
def test_calls_in_turn_choose_what_their_caller_would(context: str):
    executor, found = tiny_engine(shallow_model()).executor, list[str]()
    sum_of: Op[int, int] = Op(
        "sum", int, {"fast": Impl(int, lambda _: None)}, batch_invariant=True
    )
    alike = batch_invariant() if context == "invariant" else sum_of.using("reference")
    with InTurn(executor, [lambda: found.append(sum_of.choice(1))] * 2) as runs:
        runs.begin(1)
    with alike, InTurn(executor, [lambda: found.append(sum_of.choice(1))]) as runs:
        runs.begin(1)
    assert found == ["fast", "reference"]


@pytest.mark.parametrize("threads", [0, 3])
def test_warming_up_after_work_changes_no_page(threads: int):
    """Cached prefixes are in them, and rows were somebody's."""
    engine = tiny_engine(shallow_model(), max_num_seqs=2)
    asked = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    run(engine, [[8], [5, 6, 7]], asked)
    for first in (30, 60, 90):  # the pages of the second row are another's now
        run(engine, [list(range(first, first + 24))], asked)
    before = np.array(engine.executor.kv.array)
    warm_up(
        engine.executor,
        engine.buckets,
        engine.plan.layout,
        [asked],
        longest=32,
        threads=threads,
    )
    np.testing.assert_array_equal(engine.executor.kv.array, before)
