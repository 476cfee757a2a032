"""What a model's authors recommend for sampling from it, and what they end it with."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fdjax.errors import ConfigError
from fdjax.generate.checks import Interval, integer
from fdjax.generate.fields import INT32_MAX
from fdjax.generate.params import SamplingParams
from fdjax.models.strict_json import read_object

FILE_NAME = "generation_config.json"
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_EOS = "eos_token_id"
_TOKEN_ID = Interval(0, INT32_MAX)


def recommended_sampling(folder: pathlib.Path) -> dict[str, Any]:
    """Arguments of `SamplingParams` that `generation_config.json` gives, as in vLLM.

    Args:
        folder: the model's; without the file, nothing is recommended.

    Raises:
        ConfigError: the file cannot be read, or a value is out of range.
    """
    try:
        fields = _fields(folder)
        recommended = {n: fields[n] for n in _FIELDS if fields.get(n) is not None}
        SamplingParams(**recommended)
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    return recommended


def default_sampling(
    folder: pathlib.Path, source: str, override: Mapping[str, Any] | None
) -> SamplingParams:
    """What a model is sampled by when nobody says anything else.

    Args:
        folder: the model's.
        source: "auto" for what `generation_config.json` gives, "vllm" for the defaults.
        override: what replaces that.

    Raises:
        ConfigError: `source` is neither; the file cannot be read; or a value is out of
            range, or no argument of `SamplingParams`.
    """
    if source not in ("auto", "vllm"):
        raise ConfigError(
            f"generation_config is {source!r}; use auto, or vllm for what "
            "SamplingParams is by default"
        )
    recommended = recommended_sampling(folder) if source == "auto" else {}
    try:
        return SamplingParams(**recommended | dict(override or {}))
    except (TypeError, ValueError) as error:
        beside = (
            f"; {FILE_NAME} recommends {', '.join(recommended)}, and "
            'generation_config="vllm" leaves that out'
        )
        raise ConfigError(
            f"override_generation_config: {error}{beside if recommended else ''}"
        ) from error


def eos_token_ids(folder: pathlib.Path) -> tuple[int, ...]:
    """The end-of-sequence tokens that `generation_config.json` names.

    Chat models list there what ends a turn, which `config.json` may not name.

    Args:
        folder: the model's; without the file there are none.

    Raises:
        ConfigError: the file cannot be read, or they are no token ids.
    """
    try:
        value = _fields(folder).get(_EOS)
        if value is None:
            return ()
        values: list[Any] = value if isinstance(value, list) else [value]
        return tuple(integer(_EOS, each, _TOKEN_ID) for each in values)
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error


def _fields(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / FILE_NAME
    return read_object(path) if path.is_file() else {}


def _unusable(folder: pathlib.Path, error: Exception) -> ConfigError:
    return ConfigError(f"{folder / FILE_NAME} cannot be used: {error}")
