"""A model from its options, with a bar; and how it likes to be sampled."""

import pathlib
from typing import TYPE_CHECKING, Any

from fdjax.cli import progress
from fdjax.cli.options import SHIPPED, ModelOptions

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM

# Greedy text of a model this small loops; so does its whole distribution stumble.
_TALES = {"temperature": 0.7, "top_k": 50}


def load(options: ModelOptions, **settings: Any) -> "LLM":
    """Loads a model.

    Args:
        options: which, and how.
        settings: other arguments of `fdjax.LLM`.

    Raises:
        ConfigError: see `fdjax.LLM`, here and for the next two.
        CheckpointError: as above.
        MemoryBudgetError: as above.
    """
    with progress.loading(options.model) as report:
        from fdjax.serve.llm import LLM

        given = options.settings() | settings
        return LLM(options.model, **given, on_progress=report)


def configuration(model: str, revision: str | None) -> pathlib.Path:
    """The folder or the file that holds a model's configuration, without its weights.

    Raises:
        ConfigError: there is no such model.
    """
    from fdjax.models import resolve

    place = pathlib.Path(model).expanduser()
    if place.exists():
        return place
    return resolve(model, revision=revision, wanted=["config.json"])


def sampling_defaults(folder: pathlib.Path, options: ModelOptions) -> dict[str, Any]:
    """Arguments of `SamplingParams` for what the user left open."""
    from fdjax.serve.generation_config import recommended_sampling

    shipped = _TALES if options.model == SHIPPED else {}
    return shipped | recommended_sampling(folder)
