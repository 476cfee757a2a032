"""`BeamPrompts`: how the prompts of beam searches are read."""

from collections import OrderedDict
from collections.abc import Sequence

from fdjax.engine.shared_reads import SharedReads
from fdjax.kernels.paged import SharedPrefixes
from fdjax.kernels.shared_prefix import (
    plan_prompts,
    prefix_shapes,
    room_for_prompts,
    table,
)
from fdjax.models.config import ModelConfig

_ELEMENT_BYTES = 2  # of the keys that the kernels take
_MAX_KEPT = 64


class BeamPrompts:
    """Plans those that are worth to be read once for all beams of a group.

    A prompt is not where positions matter to the model's attention, or where little
    would be saved: then each beam reads it.

    Args:
        config: of the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        heads = config.layers[0].attention
        self._suits = SharedReads.suit(config)
        self._num_kv_heads = heads.num_kv_heads
        self._group = heads.num_heads // heads.num_kv_heads
        self._least_bytes = table.PART.find().prompt_bytes
        self._token_bytes = 2 * heads.num_kv_heads * heads.head_dim * _ELEMENT_BYTES
        # A plan is the same as long as the same searches run.
        self._kept: OrderedDict[tuple[int, ...], SharedPrefixes] = OrderedDict()

    def is_worth(self, num_groups: int, width: int, room: int) -> bool:
        """Whether prompts are read once, by static sizes.

        Args:
            num_groups: of all searches of a call.
            width: beams of a group, padding included.
            room: tokens that the table of a prompt has room for.
        """
        saved = num_groups * (width - 1) * room * self._token_bytes
        return self._suits and saved >= self._least_bytes

    def plan(
        self, lengths: Sequence[int], width: int, room: int
    ) -> SharedPrefixes | None:
        """The plan for groups of beams, on the device; the last ones are kept.

        Args:
            lengths: tokens of each group's prompt.
            width: see `is_worth`.
            room: see there.
        """
        if not self.is_worth(len(lengths), width, room):
            return None
        key = (*lengths, width)
        if key not in self._kept:
            self._kept[key] = plan_prompts(
                lengths,
                width=width,
                num_kv_heads=self._num_kv_heads,
                group=self._group,
            )
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def shapes(self, num_groups: int, width: int) -> SharedPrefixes:
        """Stand-ins for such a plan."""
        room = room_for_prompts(
            num_groups,
            width=width,
            num_kv_heads=self._num_kv_heads,
            group=self._group,
        )
        return prefix_shapes(num_groups * width, room)
