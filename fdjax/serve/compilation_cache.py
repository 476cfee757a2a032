"""Compiled programs on disk, so that the next process need not compile them."""

import os
import pathlib
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager

import jax
import jax.monitoring

from fdjax.errors import ConfigError
from fdjax.serve.kept_programs import KeptPrograms
from fdjax.user_folders import user_folder

_KEPT = KeptPrograms()
# The oldest give way beyond it. A program of the small model takes some 100 KB.
MAX_BYTES = 8 * 2**30


def default_folder() -> pathlib.Path:
    """The user's own; `XDG_CACHE_HOME` moves it.

    Raises:
        NoHomeError: the user has none.
    """
    return user_folder("XDG_CACHE_HOME", ".cache") / "programs"


def is_configured() -> bool:
    """JAX already has a folder, of `JAX_COMPILATION_CACHE_DIR` or of the program's."""
    return jax.config.jax_compilation_cache_dir is not None


def refuse(folder: pathlib.Path, status: os.stat_result) -> str | None:
    """Why programs of a folder may not be run, or `None`.

    Args:
        folder: for the message.
        status: of the folder.
    """
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not others and status.st_uid == os.geteuid():
        return None
    return (
        f"{folder} holds programs that will be run, and others may write there "
        f"(owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}); use a "
        "folder of your own with mode 700"
    )


def use(folder: pathlib.Path) -> None:
    """Lets JAX look for programs in a folder, and put there what it compiles.

    JAX finds them by the program itself, the versions of JAX and its libraries, their
    flags and the device: what does not fit is compiled anew. What is in the folder is
    run, so nobody else may write there.

    Args:
        folder: made if it is not there.

    Raises:
        ConfigError: it cannot be made, or others may write there.
    """
    folder = folder.expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot keep compiled programs ({error.strerror}); name another "
            "folder, or go without"
        ) from error
    if (reason := refuse(folder, status)) is not None:
        raise ConfigError(reason)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    _KEPT.watch(folder)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    # Many small programs are what a start waits for.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextmanager
def counting() -> Generator[Callable[[], int]]:
    """Inside a `with` block: yields what counts the programs compiled in it.

    Those that were read from a folder are not among them.
    """
    gotten, read = list[str](), list[str]()

    def note_seconds(event: str, duration_secs: float, **_: object) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            gotten.append(event)

    def note(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            read.append(event)

    jax.monitoring.register_event_duration_secs_listener(note_seconds)
    jax.monitoring.register_event_listener(note)
    try:
        yield lambda: len(gotten) - len(read)
    finally:
        jax.monitoring.unregister_event_duration_listener(note_seconds)
        jax.monitoring.unregister_event_listener(note)
