"""The model families fdjax serves, and how one is found for a `config.json`."""

from collections.abc import Mapping
from typing import Any

from fdjax.errors import ConfigError
from fdjax.models.families.bloom import BLOOM
from fdjax.models.families.chatglm import CHATGLM
from fdjax.models.families.gemma2 import GEMMA2
from fdjax.models.families.glm import GLM
from fdjax.models.families.glm4 import GLM4
from fdjax.models.families.gptj import GPTJ
from fdjax.models.families.llama import LLAMA
from fdjax.models.families.mistral import MISTRAL
from fdjax.models.families.opt import OPT
from fdjax.models.families.qwen2 import QWEN2
from fdjax.models.families.qwen3 import QWEN3
from fdjax.models.family import Family

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA2,
        GLM,
        GLM4,
        CHATGLM,
        OPT,
        GPTJ,
        BLOOM,
    )
}

_BY_ARCHITECTURE = {
    architecture: family
    for family in FAMILIES.values()
    for architecture in family.architectures
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Finds the family of a parsed `config.json` by its "architectures".

    Code that a repository ships ("auto_map") is never run; a repository that has such
    code is served only where fdjax itself implements its architecture.

    Raises:
        ConfigError: the field is missing or malformed, or fdjax does not implement
            any of the architectures.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError(
            f"config.json: architectures = {names!r}: expected a list of class names, "
            f"such as {LLAMA.architectures[0]}"
        )
    for name in names:
        if isinstance(name, str) and name in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[name]
    code = ""
    if config.get("auto_map"):
        code = " The repository brings code of its own (auto_map), which is never run."
    raise ConfigError(
        f"config.json: architectures = {names!r}: not implemented; supported are "
        f"{', '.join(sorted(_BY_ARCHITECTURE))}.{code}"
    )
