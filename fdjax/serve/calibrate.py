"""The softmax calibration of a model: its attention scores over a text, and bounds."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.errors import ConfigError
from fdjax.generate.score_histograms import ScoreHistograms, count_scores
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.models.calibration import (
    Calibration,
    CheckedText,
    LayerRanges,
    Range,
    bounds_of,
)
from fdjax.models.decoder import Decoder
from fdjax.models.weights import Progress
from fdjax.serve.loading import load_decoder
from fdjax.serve.score_ranges import covering_range, share_outside
from fdjax.serve.setup import MAX_BATCHED_TOKENS, Settings, kind_of_platform
from fdjax.serve.tokenizer import Tokenizer, load_tokenizer

PAGE_SIZE = 16

# Scripts that take more bytes a token take fewer characters.
_CHARACTERS_PER_TOKEN = 8

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Measured:
    """The attention scores of a model over one text.

    Attributes:
        text: the file's name.
        tokens: how many were read.
        scores: histogram of the scores, `[L, Hq, bins]`.
        row_maxima: histogram of the largest score of each query, `[L, Hq, bins]`.
    """

    text: str
    tokens: int
    scores: np.ndarray
    row_maxima: np.ndarray


def load_for_calibration(
    model: str,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    on_progress: Progress | None = None,
) -> tuple[Decoder, Tokenizer]:
    """A model and its tokenizer, without an engine.

    Raises:
        ConfigError: the model is not found or not supported, or has no tokenizer.
        CheckpointError: its files do not hold its weights.
    """
    settings = Settings.of(
        model, dtype=dtype, revision=revision, softmax="synchronised"
    )
    tokenizer = load_tokenizer(settings.folder)
    if tokenizer is None:
        raise ConfigError(
            f"{settings.folder} has no tokenizer; calibration reads a text, so put the "
            "model's tokenizer.json there"
        )
    return load_decoder(settings, on_progress=on_progress), tokenizer


def measure(
    model: Decoder,
    tokenizer: Tokenizer,
    text: pathlib.Path,
    *,
    context: int,
    max_tokens: int,
    on_progress: Callable[[int], None] | None = None,
) -> Measured:
    """Runs a model over the start of a text, in pieces.

    Args:
        model: the decoder.
        tokenizer: of the model.
        text: a file in UTF-8.
        context: tokens of a piece: each query sees those of its piece before it.
        max_tokens: how many tokens to read at most.
        on_progress: called with the number of tokens newly done.

    Raises:
        ConfigError: the text cannot be read, or has no tokens; there are too many
            scores to count, or some are not numbers.
    """
    pieces = _pieces(tokenizer, text, context=context, max_tokens=max_tokens)
    tokens = sum(map(len, pieces))
    if tokens * context > _MAX_COUNT:
        raise ConfigError(
            f"{tokens} tokens in pieces of {context} may put {tokens * context} scores "
            f"into one bin, which holds {_MAX_COUNT}; read fewer tokens"
        )
    counts = _count(model, pieces, context=context, on_progress=on_progress)
    scores, row_maxima = (
        np.asarray(leaf, np.int64) for leaf in (counts.scores, counts.row_maxima)
    )
    expected = tokens * row_maxima.shape[0] * row_maxima.shape[1]
    if row_maxima.sum() != expected:
        raise ConfigError(
            f"only {row_maxima.sum()} of {expected} queries have scores that are "
            "numbers; the weights are broken, or the dtype is too narrow for them"
        )
    return Measured(text.name, tokens, scores, row_maxima)


def calibration_of(
    measured: Measured,
    others: Sequence[Measured] = (),
    *,
    model: str,
    coverage: float,
    margin: float,
) -> Calibration:
    """Ranges, bounds, and how often these would have been left.

    Args:
        measured: what the bounds are made from.
        others: texts that are only held against them.
        model: the model's name, as `LLM` is given it.
        coverage: share of the scores, and of the rows, inside the ranges.
        margin: room beyond the ranges.

    Raises:
        ConfigError: the coverage or the margin is out of range.
    """
    if not 0.0 < coverage <= 1.0:
        raise ConfigError(f"coverage is {coverage}; use a share above 0, up to 1")
    if not margin >= 0.0:
        raise ConfigError(f"margin is {margin}; use 0 or more")
    cover = functools.partial(covering_range, coverage=coverage)
    scores, row_maxima = cover(measured.scores), cover(measured.row_maxima)
    bounds = bounds_of(scores, row_maxima, margin=margin)
    unified = bounds if isinstance(bounds, UnifiedMax) else None
    layers = zip(measured.scores, measured.row_maxima, strict=True)
    return Calibration(
        models=(model,),
        source="measured by fdjax calibrate",
        coverage=coverage,
        scores=scores,
        row_maxima=row_maxima,
        margin=margin,
        unified=unified,
        reason=None if isinstance(bounds, UnifiedMax) else bounds,
        texts=tuple(_reading(one, scores, unified) for one in (measured, *others)),
        layers=tuple(LayerRanges(cover(one), cover(other)) for one, other in layers),
    )


def _reading(
    measured: Measured, scores: Range, unified: UnifiedMax | None
) -> CheckedText:
    recomputed = None
    if unified is not None:
        bounds = Range(unified.phi + unified.low, unified.phi + unified.high)
        recomputed = share_outside(measured.row_maxima, bounds)
    return CheckedText(
        text=measured.text,
        tokens=measured.tokens,
        recomputed=recomputed,
        beyond_scores=share_outside(measured.row_maxima, scores),
    )


def _pieces(
    tokenizer: Tokenizer, text: pathlib.Path, *, context: int, max_tokens: int
) -> list[list[int]]:
    """The text's tokens, cut up; each piece begins as a prompt does."""
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the text {text} cannot be read: {error}") from error
    start = tokenizer.encode("")
    step = context - len(start)
    if step < 1:
        raise ConfigError(
            f"pieces of {context} tokens have no room beside the {len(start)} a prompt "
            "begins with; use longer ones"
        )
    ids = tokenizer.encode_plain(content[: max_tokens * _CHARACTERS_PER_TOKEN])
    if not ids:
        raise ConfigError(f"the text {text} has no tokens; give one that is not empty")
    pieces = [start + ids[first : first + step] for first in range(0, len(ids), step)]
    return pieces[: max(max_tokens // context, 1)]


def _count(
    model: Decoder,
    pieces: list[list[int]],
    *,
    context: int,
    on_progress: Callable[[int], None] | None,
) -> ScoreHistograms:
    config = model.config
    rows = min(max(MAX_BATCHED_TOKENS[kind_of_platform()] // context, 1), len(pieces))
    layout = config.kv_layout(
        num_pages=rows * -(-context // PAGE_SIZE),
        page_size=PAGE_SIZE,
        dtype=model.embed.weight.get_value().dtype,
    )
    table = jnp.arange(layout.num_pages, dtype=jnp.int32).reshape(rows, -1)
    step = jax.jit(count_scores, donate_argnums=(1, 2))
    kv = layout.allocate()
    counts = ScoreHistograms.zeros(config.num_layers, config.num_heads)
    for tokens, lengths in _batches(pieces, rows=rows, context=context):
        kv, counts = step(model, kv, counts, tokens, lengths, table)
        if on_progress is not None:
            jax.block_until_ready(counts)
            on_progress(int(lengths.sum()))
    return counts


def _batches(
    pieces: list[list[int]], *, rows: int, context: int
) -> Iterator[tuple[jax.Array, jax.Array]]:
    for first in range(0, len(pieces), rows):
        tokens = np.zeros((rows, context), np.int32)
        lengths = np.zeros(rows, np.int32)
        for row, piece in enumerate(pieces[first : first + rows]):
            tokens[row, : len(piece)] = piece
            lengths[row] = len(piece)
        yield jnp.asarray(tokens), jnp.asarray(lengths)
