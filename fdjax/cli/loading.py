"""A model from its options, with a bar; and how it likes to be sampled."""

import logging
import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fdjax.cli import progress
from fdjax.cli.options import SHIPPED, ModelOptions
from fdjax.errors import ConfigError

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM

_LOGGER = logging.getLogger(__name__)

# Greedy text of a model this small loops; so does its whole distribution stumble.
_TALES = {"temperature": 0.7, "top_k": 50}


def keep_programs(folder: pathlib.Path | None = None) -> None:
    """Keeps compiled programs for the next command, or the next server.

    Args:
        folder: for them; else the user's, if it can be used, or JAX's own.

    Raises:
        ConfigError: the folder that was asked for cannot be used.
    """
    from fdjax.serve import compilation_cache

    if folder is not None:
        compilation_cache.use(folder)
    elif not compilation_cache.is_configured():
        try:
            compilation_cache.use(compilation_cache.default_folder())
        except ConfigError as error:  # a home that is read-only is no reason to stop
            _LOGGER.warning("programs are not kept: %s", error)


def load(options: ModelOptions, *, for_chat: bool = False, **settings: Any) -> "LLM":
    """Loads a model.

    Args:
        options: which, and how.
        for_chat: what its chat template needs must be there, before weights are read.
        settings: other arguments of `fdjax.LLM`.

    Raises:
        ConfigError: see `fdjax.LLM`, here and for the next two.
        CheckpointError: as above.
        MemoryBudgetError: as above.
    """
    with progress.loading(options.model) as report:
        from fdjax.serve.llm import LLM

        if for_chat:
            _check_template(options)
        given = options.settings() | settings
        return LLM(options.model, **given, on_progress=report)


def load_ready(
    options: ModelOptions,
    compiling: Callable[[], AbstractContextManager[progress.OnPrograms]],
    **settings: Any,
) -> "LLM":
    """Loads a model, and compiles its programs.

    Args:
        options: which, and how.
        compiling: what programs are reported to, once weights are there.
        settings: other arguments of `fdjax.LLM`.

    Raises:
        ConfigError: see `load`, as for the others.
        CheckpointError: see there.
        MemoryBudgetError: see there.
    """
    with progress.loading_first(options.model, compiling) as (loaded, compiled):
        from fdjax.serve.llm import LLM

        given = options.settings() | settings
        return LLM(options.model, **given, on_progress=loaded, on_programs=compiled)


def _check_template(options: ModelOptions) -> None:
    from fdjax.models import resolve
    from fdjax.serve.chat_template import ChatTemplate

    path = pathlib.Path(options.model).expanduser()
    if path.is_file():  # a configuration alone
        return
    ChatTemplate(resolve(options.model, revision=options.revision))


def configuration(model: str, revision: str | None) -> pathlib.Path:
    """The folder or the file that holds a model's configuration, without its weights.

    Raises:
        ConfigError: there is no such model, or one that has no revisions.
    """
    from fdjax.models.source import locate

    return locate(model, revision=revision, wanted=["config.json"])


def sampling_defaults(folder: pathlib.Path, options: ModelOptions) -> dict[str, Any]:
    """Arguments of `SamplingParams` for what the user left open."""
    from fdjax.serve.generation_config import recommended_sampling

    shipped = _TALES if options.model == SHIPPED else {}
    return shipped | recommended_sampling(folder)
