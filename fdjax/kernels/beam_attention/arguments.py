"""The arguments of `beam_attention`."""

from fdjax.kernels.paged import PagedAttention
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
    """

    prompt_table: Int32[Array, "groups W"]
    prompt_lengths: Int32[Array, " groups"]
    origins: Int32[Array, "B limit"]

    @property
    def width(self) -> int:
        """Beams of a group."""
        return self.origins.shape[0] // max(self.prompt_lengths.shape[0], 1)


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
