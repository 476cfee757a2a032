"""Programs on disk: written once, found again, and never where others may write."""

import pathlib
import stat
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from fdjax.errors import ConfigError
from fdjax.serve import compilation_cache

_OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """JAX goes back to what it did before."""
    before = {name: getattr(jax.config, name) for name in _OPTIONS}
    jax_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


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
