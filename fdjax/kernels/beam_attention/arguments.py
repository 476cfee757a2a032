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
        page_size = cache.page_size
        step = jnp.arange(pages.width * page_size, dtype=jnp.int32)
        first = jnp.arange(pages.num_rows, dtype=jnp.int32) // self.width * self.width
        origin = first[:, None] + self.origins.at[:, step].get(mode="clip")
        page = pages.page_table.at[origin, step // page_size].get(mode="clip")
        exists = (page >= 0) & (page < cache.num_pages)
        slots = jnp.where(exists, page * page_size + step % page_size, -1)
        return PageView(slots, pages.lengths, pages.starts, by_slot=True)

    def whole(self, pages: PageView, cache: KVCache) -> PageView:
        """Each beam's prompt and then its tokens after it, by slot.

        Args:
            pages: of the beams.
            cache: which they are of.
        """
        page_size, own = cache.page_size, self.own(pages, cache)
        group = jnp.arange(pages.num_rows, dtype=jnp.int32) // self.width
        before = self.prompt_lengths[group]
        step = jnp.arange(self.prompt_table.shape[1] * page_size + own.width)
        page = self.prompt_table.at[:, step // page_size].get(mode="clip")[group]
        exists = (page >= 0) & (page < cache.num_pages)
        prompt = jnp.where(exists, page * page_size + step % page_size, -1)
        rows = jnp.arange(pages.num_rows)[:, None]
        after = own.page_table.at[rows, jnp.maximum(step - before[:, None], 0)]
        slots = jnp.where(
            step < before[:, None], prompt, after.get(mode="fill", fill_value=-1)
        )
        return PageView(
            slots,
            before + own.lengths,
            before + own.first_positions,
            by_slot=True,
        )

    def prompts(self, num_rows: int) -> PageView:
        """Each beam's row as far as its group shares it.

        Args:
            num_rows: beams of all groups.
        """
        group = jnp.arange(num_rows, dtype=jnp.int32) // self.width
        return PageView(self.prompt_table[group], self.prompt_lengths[group])


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
