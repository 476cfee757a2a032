"""Programs on disk: written once, found again, and never where others may write."""

import pathlib
import resource
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.errors import ConfigError
from fdjax.serve import compilation_cache
from tests.support.kept_programs import keeping


@pytest.fixture(autouse=True)
def no_folder() -> Iterator[None]:
    """JAX keeps nothing before, and goes back to what it did."""
    with keeping(None):
        yield


def compile_anew() -> None:
    """The same program each time, of a function that JAX has not seen."""
    jax.jit(lambda x: jnp.sin(x) * 3 + 1)(jnp.arange(7.0)).block_until_ready()


def test_a_program_is_kept_and_found_again(tmp_path: pathlib.Path):
    folder = tmp_path / "deep" / "programs"
    assert not compilation_cache.is_configured()
    compilation_cache.use(folder)
    assert compilation_cache.is_configured()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    compile_anew()
    kept = {file.name for file in folder.iterdir()}
    assert kept
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **kwargs: events.append(event))
    compile_anew()
    assert "/jax/compilation_cache/cache_hits" in events
    assert {file.name for file in folder.iterdir()} == kept


def test_programs_that_are_read_are_not_counted(tmp_path: pathlib.Path):
    compilation_cache.use(tmp_path / "programs")
    with compilation_cache.counting() as num_compiled:
        x = jnp.arange(7.0)
        before = num_compiled()
        compile_of = jax.jit(lambda x: jnp.sin(x) * 3 + 1).lower(x).compile
        compile_of()
        assert num_compiled() == before + 1
        jax.clear_caches()
        jax.jit(lambda x: jnp.sin(x) * 3 + 1).lower(x).compile()
        assert num_compiled() == before + 1
    compile_anew()
    assert num_compiled() == before + 1


def test_where_others_may_write_nothing_is_run_from(tmp_path: pathlib.Path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="mode 777"):
        compilation_cache.use(folder)
    assert not compilation_cache.is_configured()


def test_a_folder_that_cannot_be_made(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep compiled programs"):
        compilation_cache.use(tmp_path / "file" / "programs")


def test_the_users_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    found = compilation_cache.default_folder()
    assert found == pathlib.Path("/somewhere/fdjax/programs")


def programs_in(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*-cache")}


def hits() -> int:
    """How many programs were found while one is compiled."""
    events: list[str] = []

    def note(event: str, **kwargs: Any) -> None:
        del kwargs
        events.append(event)

    jax.monitoring.register_event_listener(note)
    try:
        compile_anew()
    finally:
        jax.monitoring.unregister_event_listener(note)
    return events.count("/jax/compilation_cache/cache_hits")


@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache")
@pytest.mark.parametrize(
    "left", [lambda b: b[: len(b) // 2], lambda b: b"", bytes.upper]
)
def test_a_program_that_cannot_be_read_is_written_anew(
    left: Callable[[bytes], bytes],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
):
    compile_anew()  # with what the first program of a process needs besides
    compilation_cache.use(tmp_path)
    compile_anew()
    before = programs_in(tmp_path)
    for name, content in before.items():
        (tmp_path / name).write_bytes(left(content))
    assert hits() == 0
    assert caplog.text.count("cannot be read; it is compiled anew") == len(before)
    assert programs_in(tmp_path).keys() == before.keys()
    caplog.clear()
    assert hits() == len(before)
    assert not caplog.records


def test_threads_leave_each_other_their_programs(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    compilation_cache.use(tmp_path)
    functions = [jax.jit(lambda x, n=n: jnp.sin(x) * n + n) for n in range(12)]
    lowered = [function.lower(jnp.arange(7.0)) for function in functions]
    before = programs_in(tmp_path).keys()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda one: one.compile(), lowered))
    assert len(programs_in(tmp_path).keys() - before) == len(functions)
    assert not caplog.records


@pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache")
def test_a_full_disk_is_said_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    compilation_cache.use(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        compile_anew()
        jax.jit(lambda x: jnp.cos(x) * 5 + 1)(jnp.arange(9.0)).block_until_ready()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caplog.text.count("cannot be kept") == 1
    assert str(tmp_path) in caplog.text
