"""Fields that many families share, read in one way."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from fdjax.config import Activation, LayerSpec, Rope
from fdjax.models.hf_config import HfConfig

# More layers than any model has; bounds what a hostile file can make us allocate.
MAX_LAYERS = 10_000

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}


def activation(fields: HfConfig, name: str, default: str) -> Activation:
    """The activation that field `name` names.

    Raises:
        ConfigError: fdjax does not have it.
    """
    value = fields.take(name, str, default)
    if value not in _ACTIVATIONS:
        raise fields.error(name, f"supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def saved_dtype(fields: HfConfig) -> Literal["float16", "bfloat16", "float32"]:
    """The type the checkpoint was saved in; float32, torch's own, if not written.

    Raises:
        ConfigError: it is another type.
    """
    value = fields.take_optional("dtype", str, aliases=("torch_dtype",)) or "float32"
    match value.removeprefix("torch."):
        case "float16" | "bfloat16" | "float32" as dtype:
            return dtype
        case _:
            name = "dtype" if fields.has("dtype") else "torch_dtype"
            raise fields.error(name, "supported are float16, bfloat16 and float32")


def quotient(
    fields: HfConfig, name: str, value: int, divisor_name: str, divisor: int
) -> int:
    """`value / divisor`.

    Raises:
        ConfigError: it is not whole.
    """
    if value % divisor:
        raise fields.error(
            name, f"{value} is not a multiple of {divisor_name} = {divisor}"
        )
    return value // divisor


def num_layers(fields: HfConfig, name: str = "num_hidden_layers", *aliases: str) -> int:
    """The number of layers, `L`."""
    return fields.take(name, int, aliases=aliases, maximum=MAX_LAYERS)


def eos_token_ids(fields: HfConfig, default: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a sequence: one, a list, none (null), or `default`."""
    found = fields.token_ids("eos_token_id")
    if found is not None:
        return found
    return () if fields.mentions("eos_token_id") else default


def windows(
    fields: HfConfig, window: int | None, slides: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The sliding window of each layer.

    Args:
        fields: "layer_types" is read from it.
        window: the window of sliding layers, in tokens.
        slides: whether a layer slides where the file has no "layer_types".

    Raises:
        ConfigError: a layer has another type or slides without a window, or there are
            more or fewer types than layers.
    """
    count = num_layers(fields)
    types = fields.strings("layer_types")
    if types is None:
        types = tuple(
            "sliding_attention" if slides(i) else "full_attention" for i in range(count)
        )
    if len(types) != count:
        raise fields.error(
            "layer_types", f"{len(types)} types for {count} layers (num_hidden_layers)"
        )
    sizes: dict[str, int | None] = {"full_attention": None, "sliding_attention": window}
    for layer, each in enumerate(types):
        if each not in sizes:
            raise fields.error(
                "layer_types",
                f'layer {layer} is "{each}"; supported are {", ".join(sizes)}',
            )
    if window is None and "sliding_attention" in types:
        raise fields.error(
            "sliding_window", "layer_types has sliding layers, but no window is in use"
        )
    return tuple(sizes[each] for each in types)


def with_windows(
    layer: LayerSpec, windows: Iterable[int | None]
) -> tuple[LayerSpec, ...]:
    """Layers that are `layer` but for their sliding windows."""
    return tuple(
        replace(layer, attention=replace(layer.attention, window=window))
        for window in windows
    )


def check_rotary(fields: HfConfig, name: str, rope: Rope, head_dim: int) -> Rope:
    """Returns `rope` if its rotated dimensions are pairs that fit in a head.

    Raises:
        ConfigError: they are not; names field `name`.
    """
    problem = rope.refuse_head(head_dim)
    if problem is not None:
        raise fields.error(name, problem)
    return rope
