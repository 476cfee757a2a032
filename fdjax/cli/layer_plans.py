"""The plans of a model's layers: one for each window that they have."""

import dataclasses

from fdjax.cli import attention_plans, prompt_plans
from fdjax.cli.attention_plans import Sharing
from fdjax.cli.plan_pictures import Panel
from fdjax.cli.prompt_plans import Prompt, PromptSharing
from fdjax.kernels.prefill_plan.tiles import KEY_TILE
from fdjax.models.config import ModelConfig

_NAMED = 6
"""Layers that are told by number; of more, the first ones."""


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """How attention of some layers is shared out.

    Attributes:
        title: what of, and of which layers if not of all.
        about: what holds of these layers alone, in words.
        sharing: who does what.
    """

    title: str
    about: dict[str, str]
    sharing: Sharing | PromptSharing

    def lines(self) -> dict[str, str]:
        """In words."""
        return self.about | self.sharing.lines()

    def panel(self) -> Panel:
        """To be drawn."""
        bars = self.sharing.bars()
        if isinstance(self.sharing, Sharing):
            names = "whole rows", "pieces of cut rows"
            return Panel(self.title, bars, names, "cluster", "tokens of a head")
        names = "tiles of queries", "pieces of tiles' keys"
        return Panel(self.title, bars, names, "block", f"tiles of {KEY_TILE} keys")


def plans(
    model: ModelConfig,
    lengths: tuple[int, ...],
    prompts: tuple[Prompt, ...],
    *,
    page_size: int,
) -> list[LayerPlan]:
    """The plans that a step over such rows would have on an H200.

    Layers of one window have one plan; all layers have the same heads.

    Args:
        model: whose layers.
        lengths: tokens of each row that decodes.
        prompts: rows with several new tokens.
        page_size: tokens of a page.

    Raises:
        ConfigError: see `attention_plans.share` and `prompt_plans.share`.
    """
    found = list[LayerPlan]()
    by_window = _by_window(model)
    for window, layers in by_window.items():
        attention = model.layers[layers[0]].attention
        of, about = "", dict[str, str]()
        if len(by_window) > 1:
            of = f" in {_window(window)}"
            about = {"layers": _listed(layers, model.num_layers)}
        if lengths:
            decoding = attention_plans.share(attention, lengths, page_size=page_size)
            found.append(LayerPlan(f"Attention{of}", about, decoding))
        if prompts:
            new = prompt_plans.share(attention, prompts)
            found.append(LayerPlan(f"Attention of prompts{of}", about, new))
    return found


def _by_window(model: ModelConfig) -> dict[int | None, list[int]]:
    """The layers with each window, in the order in which these come."""
    found = dict[int | None, list[int]]()
    for index, layer in enumerate(model.layers):
        found.setdefault(layer.attention.window, []).append(index)
    return found


def _window(window: int | None) -> str:
    if window is None:
        return "layers without a window"
    return f"layers with a window of {window:,} tokens"


def _listed(layers: list[int], every: int) -> str:
    """Layers in words: "21 of 42: 0, 2, 4 and so on, up to 40"."""
    first = ", ".join(map(str, layers[:_NAMED]))
    more = f" and so on, up to {layers[-1]}" if len(layers) > _NAMED else ""
    return f"{len(layers)} of {every}: {first}{more}"
