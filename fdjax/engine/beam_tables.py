"""`BeamTables`: where the calls of beam searches find keys and values."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.engine.beam_prompts import BeamPrompts
from fdjax.engine.buckets import Buckets
from fdjax.engine.page_table import page_table
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_run import BeamPages
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig


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
        # Tracing takes longer than the host's other work for a step: once is enough.
        none = (jax.ShapeDtypeStruct((0,) * rank, np.int32) for rank in (2, 1, 3))
        pages = jax.eval_shape(BeamPages, *none, self.prompts.shapes(1, 1))
        self._structure = jax.tree.structure(pages)

    def sizes(self, searches: Sequence[EngineSequence]) -> tuple[int, int, int, int]:
        """Groups of all, their width, and how wide the tables are."""
        groups = [one.search for one in searches]
        num_groups = sum(one.params.num_beam_groups for one in groups)
        prompt = max(len(one.pages) for one in searches)
        own = max(one.segments.num_pages for one in groups)
        return num_groups, groups[0].run_width, self._width(prompt), self._width(own)

    def pages(self, searches: Sequence[EngineSequence]) -> BeamPages:
        """Rows of the beams that exist, each group's padded to the width of the run."""
        num_groups, width, prompt_width, own_width = self.sizes(searches)
        absent = self._layout.num_pages
        prompts: list[list[int]] = []
        lengths: list[int] = []
        tables: list[np.ndarray] = []
        for sequence in searches:
            group = sequence.search
            params = group.params
            prompts += [sequence.pages] * params.num_beam_groups
            lengths += [sequence.num_prompt] * params.num_beam_groups
            own = page_table(
                group.segments.table(absent),
                num_rows=params.beam_width,
                width=own_width,
                num_pages=absent,
            ).reshape(params.num_beam_groups, params.group_width, own_width)
            padding = (0, width - params.group_width)
            tables.append(
                np.pad(own, ((0, 0), padding, (0, 0)), constant_values=absent)
            )
        prompt = page_table(
            prompts, num_rows=num_groups, width=prompt_width, num_pages=absent
        )
        arrays = prompt, np.array(lengths, np.int32), np.concatenate(tables)
        prompt, counts, own = jax.device_put(arrays)
        return BeamPages(prompt, counts, own, self.prompts.plan(lengths, width))

    def shapes(self, num_groups: int, width: int, prompt: int, own: int) -> BeamPages:
        """Stand-ins for `pages` of so many groups and beams, and wide tables."""
        shapes = ((num_groups, prompt), (num_groups,), (num_groups, width, own))
        structs = [jax.ShapeDtypeStruct(shape, np.int32) for shape in shapes]
        planned = jax.tree.leaves(self.prompts.shapes(num_groups, width))
        return jax.tree.unflatten(self._structure, [*structs, *planned])
