"""Where JAX keeps the programs that it compiles, for a while."""

import pathlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@contextmanager
def keeping(folder: pathlib.Path | None) -> Generator[None]:
    """JAX keeps every program that it compiles there, or none; then what it did."""
    before: dict[str, Any] = {name: getattr(jax.config, name) for name in OPTIONS}
    compilation_cache.reset_cache()
    try:
        jax.config.update("jax_compilation_cache_dir", folder and str(folder))
        jax.config.update("jax_compilation_cache_max_size", -1)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
