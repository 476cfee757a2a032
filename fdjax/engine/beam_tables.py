"""`BeamTables`: where the calls of beam searches find keys and values."""

import operator
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fdjax.engine.beam_batches import padded_count
from fdjax.engine.beam_prompts import BeamPrompts
from fdjax.engine.buckets import Buckets
from fdjax.engine.page_table import page_table
from fdjax.engine.segments import Segments
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamPages
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig

_MAX_KEPT = 8  # of calls, whose arrays stay on the device


@dataclass(frozen=True)
class _Known:
    """What was found for some searches, by the very lists that it was found from.

    A list of a prompt's pages stays as it is; where pages were moved there is another.

    Attributes:
        segments: of the searches; held, so that their ids stay theirs.
        num_changes: how often each of these had changed.
        prompts: pages of each search's prompt.
        found: tables for all of them.
    """

    segments: Sequence[Segments]
    num_changes: Sequence[int]
    prompts: Sequence[list[int]]
    found: BeamPages

    def is_of(self, prompts: Sequence[list[int]], num_changes: Sequence[int]) -> bool:
        """Whether the same searches have the same pages."""
        same = map(operator.is_, prompts, self.prompts)
        return num_changes == self.num_changes and all(same)


class BeamTables:
    """Makes page tables of searches, padded to few shapes.

    Args:
        config: of the model.
        layout: of the KV array.
        buckets: shapes.

    Attributes:
        prompts: how prompts are read.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout, buckets: Buckets) -> None:
        self.prompts = BeamPrompts(config)
        self._layout = layout
        self._width = buckets.width
        self._known: OrderedDict[tuple[int, ...], _Known] = OrderedDict()
        # Tracing takes longer than the host's other work for a step: once is enough.
        none = [jax.ShapeDtypeStruct((0,) * rank, np.int32) for rank in (2, 1, 3)]
        self._structures = {
            is_planned: jax.tree.structure(jax.eval_shape(BeamPages, *none, plan))
            for is_planned, plan in ((True, self.prompts.shapes(1, 1)), (False, None))
        }

    def sizes(self, searches: Sequence[EngineSequence]) -> tuple[int, int, int, int]:
        """Groups, with those of the padding; their width, and how wide tables are."""
        groups = [one.search for one in searches]
        num_groups = padded_count(len(groups)) * groups[0].params.num_beam_groups
        prompt = max(len(one.pages) for one in searches)
        own = max(one.segments.num_pages for one in groups)
        return num_groups, groups[0].run_width, self._width(prompt), self._width(own)

    def pages(self, searches: Sequence[EngineSequence]) -> BeamPages:
        """Rows of the beams that exist, each group's padded to the width of the run.

        Searches of the padding have no pages.

        Those of an earlier call, if the same searches had the same pages then: they
        change once in as many steps as a page has tokens.
        """
        prompts = [one.pages for one in searches]
        segments = [one.search.segments for one in searches]
        counts = [one.num_changes for one in segments]
        key = tuple(map(id, segments))
        known = self._known.get(key)
        if known is None or not known.is_of(prompts, counts):
            made = self._made(searches)
            known = self._known[key] = _Known(segments, counts, prompts, made)
            while len(self._known) > _MAX_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known.found

    def _made(self, searches: Sequence[EngineSequence]) -> BeamPages:
        num_groups, width, prompt_width, own_width = self.sizes(searches)
        absent = self._layout.num_pages
        prompts: list[list[int]] = []
        lengths: list[int] = []
        own = np.full((num_groups, width, own_width), absent, np.int32)
        first = 0
        for sequence in searches:
            params = sequence.search.params
            count = params.num_beam_groups
            prompts += [sequence.pages] * count
            lengths += [sequence.num_prompt] * count
            table = np.array(sequence.search.segments.table(absent), np.int32)
            table = table.reshape(count, params.group_width, -1)
            own[first : first + count, : params.group_width, : table.shape[2]] = table
            first += count
        lengths += [0] * (num_groups - first)
        prompt = page_table(
            prompts, num_rows=num_groups, width=prompt_width, num_pages=absent
        )
        counts = np.array(lengths, np.int32)
        prompt, counts, own = jax.device_put((prompt, counts, own))
        room = prompt_width * self._layout.page_size
        return BeamPages(prompt, counts, own, self.prompts.plan(lengths, width, room))

    def shapes(self, num_groups: int, width: int, prompt: int, own: int) -> BeamPages:
        """Stand-ins for `pages` of so many groups and beams, and wide tables."""
        shapes = ((num_groups, prompt), (num_groups,), (num_groups, width, own))
        structs = [jax.ShapeDtypeStruct(shape, np.int32) for shape in shapes]
        room = prompt * self._layout.page_size
        is_planned = self.prompts.is_worth(num_groups, width, room)
        plan = self.prompts.shapes(num_groups, width) if is_planned else None
        leaves = [*structs, *jax.tree.leaves(plan)]
        return jax.tree.unflatten(self._structures[is_planned], leaves)
