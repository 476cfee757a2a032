"""Programs that are compiled beside each other are those that run."""

import jax
import pytest
from jax import monitoring

from fdjax.engine.ahead import Ahead, Collected, compile_all, default_threads
from fdjax.engine.warm_up import warm_up
from fdjax.generate.params import SamplingParams
from tests.support.engines import shallow_model, tiny_engine

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> list[str]:
    """Grows by one for each program that XLA compiles."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event == COMPILED:
            found.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    return found


def test_a_collected_call_does_not_run_and_then_does_not_compile(
    compilations: list[str],
):
    ahead, doubled = Ahead(), jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jax.device_put(21.0)
    with ahead.collecting() as lowerings, pytest.raises(Collected):
        ahead.run(doubled, x)
    assert not compilations and not x.is_deleted()
    compile_all(lowerings, threads=2)
    assert len(compilations) == 1
    assert float(ahead.run(doubled, x)) == 42 and x.is_deleted()
    assert len(compilations) == 1


def test_an_error_while_compiling_is_told_and_ends_the_others(compilations: list[str]):
    def broken() -> jax.stages.Lowered:
        raise RuntimeError("no room")

    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.raises(RuntimeError, match="no room"):
        compile_all([lambda: lowered, broken, lambda: lowered], threads=2)
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
        engine = tiny_engine(
            shallow_model(), max_num_seqs=2, max_model_len=40, page_size=16
        )
        compilations.clear()
        done = warm_up(
            engine.executor,
            engine.buckets,
            engine.plan.layout,
            [SamplingParams(temperature=0.0), SamplingParams()],
            longest=40,
            threads=threads,
        )
        counts.append((done, len(compilations)))
    assert counts[1] == counts[2]
