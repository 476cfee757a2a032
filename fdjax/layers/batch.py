"""What one forward pass reads and writes besides weights: tokens, places and pages."""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.paged import PageView, SharedPrefixes
from fdjax.kernels.token_places import token_places
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree, static

type Phase = Literal["prefill", "decode", "mixed", "beams"]


@pytree
class Mixed:
    """The rows of a batch of which some decode, and others have any number of tokens.

    Attributes:
        prompts: the rows that do not decode, or those of them that have new tokens.
        decoding: all rows, those that do not decode with one token; `None`: none does.
        places: where among the batch's tokens the one of each row is that decodes; `T`
            for the other rows.
        rows: which of the batch's rows `prompts` are; `>= B` marks padding.
    """

    prompts: PageView
    decoding: PageView | None
    places: Int32[Array, " B"]
    rows: Int32[Array, " A"]

    def by_row(
        self, decoding: Int32[Array, "*L B"], prompts: Int32[Array, "*L A"]
    ) -> Int32[Array, "*L B"]:
        """What is counted of rows of both kinds, as one array of all rows."""
        return decoding.at[..., self.rows].set(prompts, mode="drop")


@pytree
class Batch:
    """The tokens of one forward pass and where they stand.

    Attributes:
        tokens: token ids of all rows.
        positions: position of each token in its sequence.
        slots: where each token's key and value go, `page * Z + slot`; negative or
            past the end writes nothing.
        pages: the rows, from which `positions` and `slots` follow.
        phase: "prefill" (any number of tokens a row), "decode" (one), "mixed" (rows of
            both kinds), or "beams" (one, of rows that are beams).
        wanted: tokens whose hidden states are wanted, fewer than `T`; `None`: all.
            The last layer computes nothing but keys and values for the others.
        beams: the groups of rows that are beams, whose `pages` begin at the prompts'
            ends; else `None`.
        mixed: which rows decode, where others have any number of tokens; else `None`.
    """

    tokens: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    pages: PageView
    phase: Phase = static()
    wanted: Int32[Array, " U"] | None = None
    beams: BeamView | None = None
    mixed: Mixed | None = None


def select(
    x: Float[Array, "T N"], wanted: Int32[Array, " U"] | None
) -> Float[Array, "U N"]:
    """The rows of the tokens wanted; `None`: of all."""
    return x if wanted is None else x[wanted]


def prefill_batch(
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"] | None = None,
    *,
    page_size: int,
) -> Batch:
    """Prompts, or parts of them, padded to one length; padding is never stored."""
    pages = PageView(page_table, lengths, starts)
    return _batch(tokens.reshape(-1), pages, "prefill", page_size)


def packed_batch(
    tokens: Int32[Array, " T"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    starts: Int32[Array, " B"],
    *,
    page_size: int,
) -> Batch:
    """Prompts, or parts of them, one after the other; what is past the last is padding.

    Row `r` has `lengths[r] - starts[r]` tokens.
    """
    pages = PageView.packed(page_table, lengths, starts)
    return _batch(tokens, pages, "prefill", page_size)


def decode_batch(
    tokens: Int32[Array, " B"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    prefixes: SharedPrefixes | None = None,
    *,
    page_size: int,
) -> Batch:
    """One new token a row, after the `lengths` tokens its pages already hold."""
    pages = PageView.decoding(page_table, lengths + 1, prefixes)
    return _batch(tokens, pages, "decode", page_size)


def mixed_batch(
    tokens: Int32[Array, " T"],
    pages: PageView,
    prompts: Int32[Array, " A"],
    decodes: Bool[Array, " B"] | None,
    *,
    page_size: int,
) -> Batch:
    """Rows of which some decode: their one token is among those of prompts.

    Args:
        tokens: of all rows.
        pages: of all rows, packed.
        prompts: rows with tokens of prompts, in order; `>= B` marks padding.
        decodes: which rows have one token, and decode; `None`: none.
        page_size: of the cache.
    """
    firsts, num_tokens = pages.first_tokens(tokens.shape[0]), tokens.shape[0]

    def of_prompts(by_row: Int32[Array, " B"], none: int) -> Int32[Array, " A"]:
        return by_row.at[prompts].get(mode="fill", fill_value=none)

    view = PageView(
        pages.page_table.at[prompts].get(mode="clip"),
        of_prompts(pages.lengths, 0),
        of_prompts(pages.first_positions, 0),
        of_prompts(firsts, num_tokens),
    )
    decoding, places = None, jnp.full(pages.num_rows, num_tokens, jnp.int32)
    if decodes is not None:
        # A row with no token at all would be a case of its own for kernels.
        lengths = jnp.where(decodes, pages.lengths, 1)
        decoding = PageView.decoding(pages.page_table, lengths)
        places = jnp.where(decodes, firsts, places)
    batch = _batch(tokens, pages, "mixed", page_size)
    return dataclasses.replace(batch, mixed=Mixed(view, decoding, places, prompts))


def beam_batch(
    tokens: Int32[Array, " B"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
    beams: BeamView,
    *,
    page_size: int,
) -> Batch:
    """One new token a beam, after the `lengths` that it already has past its prompt."""
    pages = PageView.decoding(page_table, lengths + 1)
    batch = _batch(tokens, pages, "beams", page_size)
    before = jnp.repeat(
        beams.prompt_lengths, beams.width, total_repeat_length=tokens.shape[0]
    )
    positions = batch.positions + before
    return dataclasses.replace(batch, positions=positions, beams=beams)


def _batch(
    tokens: Int32[Array, " T"],
    pages: PageView,
    phase: Phase,
    page_size: int,
) -> Batch:
    """Positions and slots are found once, for all layers."""
    places = token_places(pages, tokens.shape[0], page_size=page_size)
    return Batch(tokens, places.positions, places.slots, pages, phase=phase)
