"""What groups of beams keep on the device between steps, and what is told of them."""

from fdjax.generate.beam_candidates import Candidates
from fdjax.generate.beam_search import Chosen
from fdjax.generate.beam_state import BeamProgress, Hypotheses
from fdjax.kernels.paged import SharedPrefixes
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree


@pytree
class BeamRun:
    """What changes with a step of some groups; donate it.

    Attributes:
        progress: of the search.
        tokens: the token that each beam feeds next.
        origins: of the beams' tokens: see `BeamView`.
        candidates: that the host judges before some are chosen; `None` where it judges
            none, and `tokens` are chosen.
    """

    progress: BeamProgress
    tokens: Int32[Array, "groups width"]
    origins: Int32[Array, "groups width limit"]
    candidates: Candidates | None


@pytree
class Judgement:
    """What the host says of candidates, whose texts it knows.

    Attributes:
        ends: it ends there.
        allowed: which tokens may follow the first `width` that do not end, as in
            `fdjax.generate.masks`: these are the beams that go on.
    """

    ends: Bool[Array, "groups kept"]
    allowed: UInt32[Array, "groups width words"]


@pytree
class BeamPages:
    """Where groups keep keys and values.

    Attributes:
        prompt_table: pages of each prompt in order; ids `>= P` are absent.
        prompt_lengths: tokens of each prompt.
        page_table: each beam's pages for the tokens after the prompt. Keys stay where
            they are when beams are reordered.
        prefixes: the prompts, planned to be read once for all beams of a group; `None`:
            each beam reads its own.
    """

    prompt_table: Int32[Array, "groups W"]
    prompt_lengths: Int32[Array, " groups"]
    page_table: Int32[Array, "groups width Wr"]
    prefixes: SharedPrefixes | None


@pytree
class BeamStep:
    """What a step says to the host: copies that outlive the donated run.

    Attributes:
        chosen: the beams after it; `None` before the first.
        sums: of the log-probabilities of their tokens.
        finished: a `FinishReason` of each group.
        hypotheses: as far as there are any.
        candidates: that the host is to judge.
    """

    chosen: Chosen | None
    sums: Float[Array, "groups width"]
    finished: Int32[Array, " groups"]
    hypotheses: Hypotheses
    candidates: Candidates | None
