"""Programs that are compiled beside each other are those that run."""

import pathlib
import threading
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax import monitoring

from fdjax.engine.ahead import Ahead, Collected, compiled, default_threads
from fdjax.engine.warm_up import warm_up
from fdjax.generate.params import SamplingParams
from tests.support.engines import run, shallow_model, tiny_engine
from tests.support.kept_programs import keeping

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Grows by one for each program that XLA compiles; none is kept."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event == COMPILED:
            found.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    with keeping(None):
        yield found
    monitoring.unregister_event_duration_listener(listen)


def _lowered(*terms: float) -> list[jax.stages.Lowered]:
    """Programs that differ in one number."""
    return [jax.jit(lambda x, term=term: x + term).lower(1.0) for term in terms]


@pytest.fixture
def compiled_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread for each program that is compiled, or read."""
    names: list[str] = []
    compile_one = jax.stages.Lowered.compile

    def noted(self: jax.stages.Lowered) -> jax.stages.Compiled:
        names.append(threading.current_thread().name)
        return compile_one(self)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    return names


def test_threads_compile_from_the_first_program_on_that_is_not_kept(
    tmp_path: pathlib.Path, compiled_by: list[str]
):
    with keeping(tmp_path):
        for lowered in _lowered(1.0, 2.0, 5.0):
            lowered.compile()
        jax.clear_caches()
        compiled_by.clear()
        some = [lambda one=one: one for one in _lowered(1.0, 2.0, 3.0, 4.0, 5.0)]
        done = list(compiled([*some[:1], None, *some[1:]], threads=1))
    # The third is looked for, and compiled where it was not found.
    assert compiled_by == ["MainThread"] * 3 + ["compile_0"] * 2
    assert done == sorted(done) and done[:4] == [1, 2, 3, 4] and done[-1] == 6


def test_one_that_was_just_read_is_not_missed(
    tmp_path: pathlib.Path, compiled_by: list[str]
):
    tripled = jax.jit(lambda x: x * 3.25)
    with keeping(tmp_path):
        tripled.lower(1.0).compile()
        jax.clear_caches()
        compiled_by.clear()
        assert list(compiled([lambda: tripled.lower(1.0)] * 3, threads=1)) == [1, 2, 3]
    assert compiled_by == ["MainThread"] * 3


def test_without_a_folder_threads_compile_all(compiled_by: list[str]):
    with keeping(None):
        list(compiled([lambda one=one: one for one in _lowered(6.0, 7.0)], threads=1))
    assert compiled_by == ["compile_0"] * 2


def test_a_collected_call_does_not_run_and_then_does_not_compile(
    compilations: list[str],
):
    ahead, doubled = Ahead(), jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jax.device_put(21.0)
    with ahead.collecting() as lowerings, pytest.raises(Collected):
        ahead.run(doubled, x)
    assert not compilations and not x.is_deleted()
    assert list(compiled(lowerings, threads=2))[-1] == 1
    assert len(compilations) == 1
    assert float(ahead.run(doubled, x)) == 42 and x.is_deleted()
    assert len(compilations) == 1


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


def test_an_engine_warms_up_by_as_many_programs_either_way(compilations: list[str]):
    """The first engine compiles, too, what is the same for all of one shape."""
    counts: list[tuple[int, int]] = []
    for threads in (0, 0, 3):
        told: list[int] = []
        engine = tiny_engine(
            shallow_model(), max_num_seqs=1, max_model_len=16, page_size=16
        )
        compilations.clear()
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
    assert counts[1] == counts[2]


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
