"""Programs are compiled while weights are on their way, and are the same programs."""

import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring

from fdjax.engine.engine import Engine
from fdjax.engine.policy import StepPolicy
from fdjax.errors import CheckpointError, RequestError
from fdjax.models import Decoder
from fdjax.serve.compilation_cache import counting
from fdjax.serve.switching import SWITCH_S
from fdjax.serve.waking import woken
from tests.support.borrowing import TokensBorrow
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.kept_programs import keeping

COMPILED = "/jax/core/compile/backend_compile_duration"
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that programs are compiled beside each other."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.fixture
def compiling() -> Iterator[threading.Event]:
    """Set when one of the threads that compile has compiled a program."""
    begun = threading.Event()

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event == COMPILED and threading.current_thread().name.startswith("compile"):
            begun.set()

    monitoring.register_event_duration_secs_listener(listen)
    yield begun
    monitoring.unregister_event_duration_listener(listen)


def make(model: Decoder) -> Engine:
    """A small engine."""
    return tiny_engine(model, max_num_seqs=2)


def declared() -> Decoder:
    """The model, without weights."""
    return Decoder(shallow_model().config, jnp.float32)


def beside() -> list[str]:
    """Threads that load or compile."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith(("load", "compile"))]


def test_programs_are_compiled_before_the_weights_are_there(
    compiling: threading.Event, tmp_path: pathlib.Path
):
    """They are those of an engine that had its weights first: all are found again."""
    told: list[tuple[int, int]] = []

    def load(*, on_progress: Any) -> Decoder:
        assert compiling.wait(WAIT_S)
        assert not told, "what cannot run is not reported"
        on_progress(1, 1, "head.weight")
        return shallow_model()

    loaded: list[str] = []
    with keeping(tmp_path):
        jax.clear_caches()
        engine, spent = woken(
            make,
            declared(),
            load,
            lambda done, in_all, path: loaded.append(path),
            lambda done, in_all: told.append((done, in_all)),
        )
        assert loaded == ["head.weight"]
        assert told == sorted(told) and told[-1] == (spent.num_programs,) * 2
        with jax.no_tracing(True):
            outputs = run(engine, PROMPTS, GREEDY)
        jax.clear_caches()
        plain = make(shallow_model())
        with counting() as num_compiled:
            assert plain.warm_up() == spent.num_programs
            assert num_compiled() == 0
    assert outputs == run(plain, PROMPTS, GREEDY)
    assert spent.weights_s > 0 and spent.programs_s > 0
    assert not beside()


def test_an_engine_that_moves_pages_and_reads_once_wakes_likewise():
    """As on a GPU, where calls borrow pages; with programs of shared prefixes."""
    borrowing: dict[str, Any] = {"num_pages": 40, "borrowing": TokensBorrow(8)}

    def lending(model: Decoder) -> Engine:
        policy = StepPolicy(shared_reads=True)
        return tiny_engine(model, max_num_seqs=2, policy=policy, **borrowing)

    def load(*, on_progress: Any) -> Decoder:
        return shallow_model()

    told: list[tuple[int, int]] = []
    engine, spent = woken(
        lending,
        declared(),
        load,
        None,
        lambda done, in_all: told.append((done, in_all)),
    )
    assert told[-1] == (spent.num_programs,) * 2
    with jax.no_tracing(True):
        outputs = run(engine, PROMPTS, GREEDY)
    plain = lending(shallow_model())
    assert plain.warm_up() == spent.num_programs
    assert outputs == run(plain, PROMPTS, GREEDY)


def test_without_weights_an_engine_serves_nobody():
    with pytest.raises(RequestError, match="its kv_cache and weights are not"):
        make(declared()).warm_up()


def test_weights_that_cannot_be_loaded_end_all():
    told: list[int] = []

    def load(*, on_progress: Any) -> Decoder:
        raise CheckpointError("folder", ["head.weight is missing"])

    with pytest.raises(CheckpointError, match=r"head\.weight is missing"):
        woken(make, declared(), load, None, lambda done, in_all: told.append(done))
    assert not told and not beside()


def test_loading_ends_when_nobody_waits_for_it():
    """As by Ctrl-C."""
    loading, ended = threading.Event(), threading.Event()
    turns: list[float] = []

    def load(*, on_progress: Any) -> Decoder:
        turns.append(sys.getswitchinterval())
        loading.set()
        try:
            while True:
                on_progress(0, 1, "head.weight")
        finally:
            ended.set()

    def interrupted(model: Decoder) -> Engine:
        assert loading.wait(WAIT_S)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        woken(interrupted, declared(), load, None, lambda done, in_all: None)
    assert ended.is_set() and not beside()
    assert turns == [pytest.approx(SWITCH_S)]
