"""What a model's authors recommend for sampling from it."""

import pathlib
from typing import Any

from fdjax.errors import ConfigError
from fdjax.generate.params import SamplingParams
from fdjax.models.strict_json import read_object

FILE_NAME = "generation_config.json"
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended_sampling(folder: pathlib.Path) -> dict[str, Any]:
    """Arguments of `SamplingParams` that `generation_config.json` gives, as in vLLM.

    Its end-of-sequence tokens become `stop_token_ids`: chat models list there what
    ends a turn, which `config.json` may not name.

    Args:
        folder: the model's; without the file, nothing is recommended.

    Raises:
        ConfigError: the file cannot be read, or a value is out of range.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return {}
    try:
        fields = read_object(path)
        recommended = {n: fields[n] for n in _FIELDS if fields.get(n) is not None}
        stops = fields.get("eos_token_id")
        if stops is not None:
            recommended["stop_token_ids"] = [stops] if isinstance(stops, int) else stops
        SamplingParams(**recommended)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error
    return recommended
