"""The arguments of `beam_attention`."""

import jax.numpy as jnp

from fdjax.kernels.paged import KVCache, PagedAttention, PageView, SharedPrefixes
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class BeamView:
    """Groups of beams: their prompts, and where the tokens after them lie.

    The rows of a call are the beams of group 0, then those of group 1, and so on, the
    same number of each.

    Attributes:
        prompt_table: pages of each group's prompt in order; ids `>= P` are absent.
        prompt_lengths: tokens of each prompt.
        origins: for each beam and each token after the prompt, the beam of the group
            whose page holds its key and value; those past a beam's length mean nothing.
        prefixes: the prompts as what the beams of each group share, for an
            implementation that reads them once; `None`: each beam reads its own.
    """

    prompt_table: Int32[Array, "groups W"]
    prompt_lengths: Int32[Array, " groups"]
    origins: Int32[Array, "B limit"]
    prefixes: SharedPrefixes | None = None

    @property
    def width(self) -> int:
        """Beams of a group."""
        return self.origins.shape[0] // max(self.prompt_lengths.shape[0], 1)

    def own(self, pages: PageView, cache: KVCache) -> PageView:
        """Each beam's tokens after the prompt, in whose pages they may lie, by slot.

        Args:
            pages: of the beams.
            cache: which they are of.
        """
        step = jnp.arange(pages.width * cache.page_size, dtype=jnp.int32)
        slots = self._own_slots(pages, cache, jnp.broadcast_to(step, (1, step.size)))
        return PageView(slots, pages.lengths, pages.starts, by_slot=True)

    def whole(self, pages: PageView, cache: KVCache) -> PageView:
        """Each beam's prompt and then its tokens after it, by slot.

        Args:
            pages: of the beams.
            cache: which they are of.
        """
        page_size = cache.page_size
        room = (self.prompt_table.shape[1] + pages.width) * page_size
        step = jnp.arange(room, dtype=jnp.int32)[None]
        group = jnp.arange(pages.num_rows, dtype=jnp.int32)[:, None] // self.width
        before = self.prompt_lengths[group]
        page = self.prompt_table.at[group, step // page_size].get(mode="clip")
        slots = jnp.where(
            step < before,
            _slots(page, step, cache),
            self._own_slots(pages, cache, jnp.maximum(step - before, 0)),
        )
        before = before[:, 0]
        starts = before + pages.first_positions
        return PageView(slots, before + pages.lengths, starts, by_slot=True)

    def _own_slots(
        self, pages: PageView, cache: KVCache, step: Int32[Array, "#B N"]
    ) -> Int32[Array, "B N"]:
        """Where each beam's tokens lie, counted from the prompt's end."""
        beam = jnp.arange(pages.num_rows, dtype=jnp.int32)[:, None]
        origin = beam // self.width * self.width
        origin += self.origins.at[beam, step].get(mode="clip")
        page = pages.page_table.at[origin, step // cache.page_size].get(mode="clip")
        return _slots(page, step, cache)

    def prompts(self, num_rows: int) -> PageView:
        """Each beam's row as far as its group shares it.

        Args:
            num_rows: beams of all groups.
        """
        group = jnp.arange(num_rows, dtype=jnp.int32) // self.width
        return PageView(self.prompt_table[group], self.prompt_lengths[group])


def _slots(page: Array, step: Array, cache: KVCache) -> Array:
    """Of tokens in pages; negative where there is no page."""
    exists = (page >= 0) & (page < cache.num_pages)
    return jnp.where(exists, page * cache.page_size + step % cache.page_size, -1)


@pytree
class BeamAttention(PagedAttention):
    """One call of `beam_attention`.

    The fields of `fdjax.kernels.paged.PagedAttention`, and one more. The one query of
    each row is that of its last token. Positions in `pages` count from the prompt's
    end: its table has each beam's own pages, and its lengths the tokens that each beam
    has after the prompt, 1 or more.

    Attributes:
        q: the queries, in the order of the beams.
        beams: what rows are beams of one group.
    """

    q: Float[Array, "B Hq D"]
    beams: BeamView
