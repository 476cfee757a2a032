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
        ConfigError: the field is missing or malformed, fdjax does not implement one of
            the architectures, or they, or "model_type", are of different families.
    """
    # Other readers take the first class, the first that they know, or go by
    # "model_type": only where all agree is it clear what the weights are of.
    first, *others = dict.fromkeys(
        _implementing(name, config) for name in _class_names(config)
    )
    shown = f"architectures = {config['architectures']!r}"
    if others:
        families = " and ".join(family.name for family in (first, *others))
        raise ConfigError(
            f"config.json: {shown}: classes of {families}; name one that the weights "
            f'are of: hf_overrides={{"architectures": ["{first.architectures[0]}"]}}'
        )
    model_type = config.get("model_type")
    if model_type not in (None, first.name):
        raise ConfigError(
            f"config.json: model_type = {model_type!r}: contradicts {shown}, whose "
            f"model_type is {first.name!r}. If the weights are of that class: "
            f'hf_overrides={{"model_type": "{first.name}"}}'
        )
    return first


def _class_names(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    if (
        isinstance(names, list)
        and names
        and all(isinstance(name, str) for name in names)
    ):
        return names
    raise ConfigError(
        f"config.json: architectures = {names!r}: expected a list of class names, "
        f"such as {LLAMA.architectures[0]}"
    )


def _implementing(name: str, config: Mapping[str, Any]) -> Family:
    """The family that reads class `name`."""
    if name in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[name]
    code = ""
    if config.get("auto_map"):
        code = " The repository brings code of its own (auto_map), which is never run."
    others = [other for other in config["architectures"] if other in _BY_ARCHITECTURE]
    if others:
        code += (
            f" If the weights are of {others[0]}: "
            f'hf_overrides={{"architectures": ["{others[0]}"]}}'
        )
    raise ConfigError(
        f"config.json: architectures = {config['architectures']!r}: {name} is not "
        f"implemented; supported are {', '.join(sorted(_BY_ARCHITECTURE))}.{code}"
    )
