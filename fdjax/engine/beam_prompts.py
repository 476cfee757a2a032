"""`BeamPrompts`: how the prompts of beam searches are read, once for all beams."""

from collections import OrderedDict
from collections.abc import Sequence

from fdjax.engine.shared_reads import SharedReads
from fdjax.kernels.paged import SharedPrefixes
from fdjax.kernels.shared_prefix import plan_prompts, prefix_shapes, room_for_prompts
from fdjax.models.config import ModelConfig

_MAX_KEPT = 64


class BeamPrompts:
    """Plans them, where positions do not matter to the model's attention.

    Args:
        config: of the model.

    Attributes:
        are_planned: else the definition reads them, and nothing is planned.
    """

    def __init__(self, config: ModelConfig) -> None:
        heads = config.layers[0].attention
        self.are_planned = SharedReads.suit(config)
        self._num_kv_heads = heads.num_kv_heads
        self._group = heads.num_heads // heads.num_kv_heads
        # A plan is the same as long as the same searches run.
        self._kept: OrderedDict[tuple[int, ...], SharedPrefixes] = OrderedDict()

    def plan(self, lengths: Sequence[int], width: int) -> SharedPrefixes | None:
        """The plan for groups of beams, on the device; the last ones are kept.

        Args:
            lengths: tokens of each group's prompt.
            width: beams of a group, padding included.
        """
        if not self.are_planned:
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

    def shapes(self, num_groups: int, width: int) -> SharedPrefixes | None:
        """Stand-ins for such a plan."""
        if not self.are_planned:
            return None
        room = room_for_prompts(
            num_groups,
            width=width,
            num_kv_heads=self._num_kv_heads,
            group=self._group,
        )
        return prefix_shapes(num_groups * width, room)
