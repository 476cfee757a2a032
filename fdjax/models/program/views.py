"""The rows of a step as the chain's kernels of attention are told of them."""

from dataclasses import dataclass
from typing import NamedTuple

import jax

from fdjax.kernels.layer_program.call import Shared
from fdjax.kernels.paged import KVCache, PageView
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE, own_pages
from fdjax.layers import Batch
from fdjax.models.program.arguments import LayerProgram
from fdjax.models.program.instructions import Attention, Value


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


@dataclass(frozen=True)
class RowCounts:
    """The rows of a call; static.

    Attributes:
        tokens: `T`.
        wanted: `U`, of these; equal to `tokens` where all are.
        decoding: rows with one token each, of which attention is told apart; 0: none.
        prompts: whether there are rows with any number of tokens.
        shares: whether those with one token share prefixes, read once for all.
    """

    tokens: int
    wanted: int
    decoding: int
    prompts: bool
    shares: bool = False

    def of(self, value: Value) -> int:
        """How many a value of the program has."""
        return self.tokens if value.rows == "tokens" else self.wanted


def views_of(call: LayerProgram) -> Views:
    """The rows of a call."""
    return _views(call.batch, call.kv, reads_once=_reads_once(call))


def view_shapes(call: LayerProgram) -> Views:
    """Stand-ins for them; the call's arrays may be such, too."""
    reads_once = _reads_once(call)
    if call.batch.beams is None and not reads_once:
        return views_of(call)  # nothing is computed

    # Without the parameters: there are hundreds, and this is asked in every trace.
    def of_rows(batch: Batch, kv: KVCache) -> Views:
        return _views(batch, kv, reads_once=reads_once)

    return jax.eval_shape(of_rows, call.batch, call.kv)


def refuse_views(call: LayerProgram) -> str | None:
    """Why the rows of a call have no such views, or `None`."""
    beams = call.batch.beams
    if beams is None or beams.prefixes is None:
        return None
    if _positions_matter(call):
        return "rows are beams, and positions matter: there is a window, or ALiBi"
    if call.kv.page_size < LEAST_SHARED_PAGE:
        return "rows are beams, and their prompts lie in pages of one token"
    return None


def _views(batch: Batch, kv: KVCache, *, reads_once: bool) -> Views:
    pages, beams = batch.pages, batch.beams
    if batch.mixed is not None:
        return Views(batch.mixed.decoding, batch.mixed.prompts, None)
    if beams is not None and beams.prefixes is None:
        return Views(beams.whole(pages, kv), None, None)
    if beams is not None and beams.prefixes is not None:
        shared = Shared(beams.prompts(pages.num_rows).page_table, beams.prefixes)
        return Views(beams.own(pages, kv), None, shared)
    if batch.phase != "decode":
        return Views(None, pages, None)
    if pages.prefixes is None or not reads_once:
        return Views(pages, None, None)
    own = own_pages(pages, pages.prefixes, page_size=kv.page_size)
    return Views(own, None, Shared(pages.page_table, pages.prefixes))


def _reads_once(call: LayerProgram) -> bool:
    """Rows that decode share pages, and a row may begin behind them."""
    shares = call.batch.pages.prefixes is not None
    is_served = call.kv.page_size >= LEAST_SHARED_PAGE
    return shares and is_served and not _positions_matter(call)


def _positions_matter(call: LayerProgram) -> bool:
    """To attention: then a row cannot begin behind what it shares."""
    layers = (one for one in call.program.instructions if isinstance(one, Attention))
    return any(one.slopes or one.window is not None for one in layers)
