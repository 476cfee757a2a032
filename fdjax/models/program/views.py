"""The rows of a step as the chain's kernels of attention are told of them."""

from typing import NamedTuple

from fdjax.kernels.layer_program.call import Shared
from fdjax.kernels.paged import PageView
from fdjax.kernels.paged.calls import ALL_TOKENS
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE, own_pages
from fdjax.layers import Batch
from fdjax.models.program.arguments import LayerProgram
from fdjax.models.program.instructions import Attention
from fdjax.models.program.lower import windows_of


class Views(NamedTuple):
    """Which rows attend to what.

    Attributes:
        decoding: rows with one token each, over what is their own; `None`: there are
            none of which attention is told apart.
        prompts: rows with any number of tokens, likewise.
        shared: what those with one token share, read once for all of them.
    """

    decoding: PageView | None
    prompts: PageView | None
    shared: Shared | None


def views_of(call: LayerProgram) -> Views:
    """The rows of a call; its arrays may be stand-ins, under `jax.eval_shape`."""
    batch = call.batch
    if batch.mixed is not None:
        return Views(batch.mixed.decoding, batch.mixed.prompts, None)
    if batch.beams is not None:
        return _of_beams(batch, call)
    if batch.phase != "decode":
        return Views(None, batch.pages, None)
    pages, prefixes = batch.pages, batch.pages.prefixes
    if prefixes is None or _positions_matter(call):
        return Views(pages, None, None)
    own = own_pages(pages, prefixes, page_size=call.kv.page_size)
    return Views(own, None, Shared(pages.page_table, prefixes))


def _of_beams(batch: Batch, call: LayerProgram) -> Views:
    beams, pages = batch.beams, batch.pages
    assert beams is not None and beams.prefixes is not None
    table = beams.prompts(pages.num_rows).page_table
    return Views(beams.own(pages, call.kv), None, Shared(table, beams.prefixes))


def refuse_views(call: LayerProgram) -> str | None:
    """Why the rows of a call have no such views, or `None`."""
    beams, shares = call.batch.beams, call.batch.pages.prefixes is not None
    if (shares or beams is not None) and call.kv.page_size < LEAST_SHARED_PAGE:
        return "rows share pages of one token"
    if beams is None:
        return None
    if beams.prefixes is None:
        return "rows are beams, and nothing is planned for their prompts"
    if _positions_matter(call):
        return "rows are beams, and positions matter: there is a window, or ALiBi"
    return None


def _positions_matter(call: LayerProgram) -> bool:
    """To attention: then a row cannot begin behind what it shares."""
    windows = windows_of(call.program)
    slopes = any(
        isinstance(one, Attention) and one.slopes for one in call.program.instructions
    )
    return slopes or any(window != ALL_TOKENS for window in windows)
