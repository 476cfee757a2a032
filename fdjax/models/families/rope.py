"""Rotary positions of a `config.json`, in transformers' old and new spelling."""

from fdjax.config import LinearScaling, Llama3Scaling, Rope, RopeScaling
from fdjax.models.families.fields import check_rotary
from fdjax.models.hf_config import HfConfig

# What every class read through here assumes where the file has no "rope_theta".
DEFAULT_THETA = 10_000.0

_FRACTION = "partial_rotary_factor"
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(
    fields: HfConfig,
    *,
    head_dim: int,
    max_position: int,
    rotary_fraction: float | None = None,
    interleaved: bool = False,
) -> Rope:
    """Reads `rope_theta`, `rope_scaling` and `rope_parameters`.

    Args:
        fields: the configuration.
        head_dim: `D`.
        max_position: the original context where Llama 3 scaling does not state it.
        rotary_fraction: the part of a head that is rotated where the file does not
            state it; `None` for classes that always rotate whole heads.
        interleaved: how the class pairs dimensions.

    Raises:
        ConfigError: an unsupported or malformed kind of scaling; values written twice
            that differ; a rotated part that is not made of pairs.
    """
    parameters = _parameters(fields)
    theta = _theta(fields, parameters)
    fraction_owner, fraction = _fraction(fields, parameters, rotary_fraction)
    if rotary_fraction is None and fraction != 1.0:
        raise fraction_owner.error(
            _FRACTION, "this architecture rotates whole heads (1.0)"
        )
    scaling = _scaling(fields, parameters, max_position)
    parameters.finish()
    name = _FRACTION
    if fraction == 1.0:
        fraction_owner, name = fields, "head_dim"
    rope = Rope(theta, int(head_dim * fraction), interleaved, scaling)
    return check_rotary(fraction_owner, name, rope, head_dim)


def _parameters(fields: HfConfig) -> HfConfig:
    """The object that holds the parameters; an empty one where there is none."""
    found = fields.child("rope_parameters", aliases=("rope_scaling",))
    if found is None:
        return HfConfig({}, path="rope_parameters.")
    nested = [name for name in _LAYER_TYPES if found.has(name)]
    if not nested:
        return found
    # One Rope serves all layers; aliases refuse objects that differ.
    inner = found.child(nested[0], aliases=tuple(nested[1:]))
    found.finish()
    return (
        HfConfig({}, path=f"rope_parameters.{nested[0]}.") if inner is None else inner
    )


def _theta(fields: HfConfig, parameters: HfConfig) -> float:
    outer = fields.take("rope_theta", float, DEFAULT_THETA)
    inner = parameters.take("rope_theta", float, outer)
    if fields.has("rope_theta") and inner != outer:
        raise parameters.error("rope_theta", f"contradicts rope_theta = {outer}")
    return inner


def _fraction(
    fields: HfConfig, parameters: HfConfig, default: float | None
) -> tuple[HfConfig, float]:
    """The rotated part of a head, and the object that states it."""
    outer = fields.fraction(_FRACTION)
    inner = parameters.fraction(_FRACTION)
    if inner is None:
        if outer is None:
            outer = _unstated(fields, parameters, default)
        return fields, outer
    if outer is not None and inner != outer:
        raise parameters.error(_FRACTION, f"contradicts {_FRACTION} = {outer}")
    return parameters, inner


def _unstated(fields: HfConfig, parameters: HfConfig, default: float | None) -> float:
    """The rotated part where the file states none.

    Raises:
        ConfigError: it is null for a class that has a default.
    """
    if default is None:
        return 1.0
    for owner in (parameters, fields):
        # Transformers' default is for files without the field: null rotates whole
        # heads, or fails.
        if owner.mentions(_FRACTION):
            raise owner.error(
                _FRACTION, f"expected a number; without the field it is {default}"
            )
    return default


def _scaling(
    fields: HfConfig, parameters: HfConfig, max_position: int
) -> RopeScaling | None:
    match parameters.take("rope_type", str, "default", aliases=("type",)):
        case "default":
            return None
        case "linear":
            return LinearScaling(parameters.take("factor", float))
        case "llama3":
            return _llama3(fields, parameters, max_position)
        case _:
            name = "rope_type" if parameters.has("rope_type") else "type"
            raise parameters.error(name, "supported are default, linear and llama3")


def _llama3(fields: HfConfig, parameters: HfConfig, max_position: int) -> Llama3Scaling:
    name = "original_max_position_embeddings"
    outer = fields.take_optional(name, int)
    inner = parameters.take_optional(name, int)
    if inner is not None and outer is not None and inner != outer:
        raise parameters.error(name, f"contradicts {name} = {outer}")
    scaling = Llama3Scaling(
        factor=parameters.take("factor", float),
        low_freq_factor=parameters.take("low_freq_factor", float),
        high_freq_factor=parameters.take("high_freq_factor", float),
        original_max_position=inner or outer or max_position,
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise parameters.error(
            "high_freq_factor",
            f"must exceed low_freq_factor = {scaling.low_freq_factor}",
        )
    return scaling
