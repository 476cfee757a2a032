"""Softmax calibrations: where a model's attention scores lie, and bounds from that."""

import dataclasses
import importlib.resources
import json
import pathlib
from dataclasses import dataclass
from typing import Any, Literal

from fdjax.errors import ConfigError
from fdjax.kernels.decode_attention.unified import LIMIT, UnifiedMax
from fdjax.models.strict_json import read_object

FILE_NAME = "softmax.json"
"""A model's folder may hold its own calibration under this name."""

# Of prompts the kernel knows the sum of a row's weights, and of 2^25 tokens that is up
# to exp(17.4) times the largest: a row whose largest score is within the ranges is
# never computed again. And of 12 million largest scores of tales-5m, on the text of its
# calibration and another, none lay 8 beyond the range of 99.99 % of them. Wider bounds
# cost nothing.
MARGIN = 18.0

_DECIMALS = 6  # so that -10.5 and 13.7 give 1.6


@dataclass(frozen=True)
class Range:
    """Scores from `low` to `high`."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the range."""
        return self.high - self.low


@dataclass(frozen=True)
class LayerRanges:
    """The ranges of one layer, over its heads.

    Attributes:
        scores: of all scores.
        row_maxima: of the largest score of each row and query head.
    """

    scores: Range
    row_maxima: Range


@dataclass(frozen=True)
class CheckedText:
    """A text held against a calibration; shares are of rows times query heads.

    Attributes:
        text: the file's name.
        tokens: how many were read.
        recomputed: share whose largest score leaves the bounds; `None` without bounds.
        beyond_scores: share whose largest score leaves the range of the scores: what
            bounds made from all scores alike would compute again.
    """

    text: str
    tokens: int
    recomputed: float | None
    beyond_scores: float


@dataclass(frozen=True)
class Calibration:
    """What was found out about one model, and what decoding makes of it.

    Attributes:
        models: names of the model, as `LLM` is given them.
        source: who found it out: this program, or a paper.
        coverage: share of the scores, and of the rows, inside the ranges.
        scores: the range of the scores, `a` and `b` of the paper.
        row_maxima: the range of the largest score of each query and head, which decides
            whether it is computed again; `None` where it was not published.
        margin: room beyond the ranges on both sides of the bounds, where there is any.
        unified: the bounds, or `None`: the synchronised softmax has to do.
        reason: why there are no bounds.
        texts: what was read: first the text that the ranges are of.
        layers: the ranges of each layer, where measured.
    """

    models: tuple[str, ...]
    source: str
    coverage: float
    scores: Range
    row_maxima: Range | None = None
    margin: float = MARGIN
    unified: UnifiedMax | None = None
    reason: str | None = None
    texts: tuple[CheckedText, ...] = ()
    layers: tuple[LayerRanges, ...] = ()

    @property
    def scheme(self) -> Literal["unified", "synchronised"]:
        """Which softmax decoding uses."""
        return "synchronised" if self.unified is None else "unified"

    def to_json(self) -> str:
        """The file's text; what is not known is left out."""
        fields = dataclasses.asdict(self)
        bounds = fields.pop("unified") or {}
        fields = {
            "models": fields.pop("models"),
            "scheme": self.scheme,
            **bounds,
            **fields,
        }
        known = {
            name: value for name, value in fields.items() if value not in (None, ())
        }
        return json.dumps(known, indent=1) + "\n"


def bounds_of(
    scores: Range, row_maxima: Range | None, *, margin: float
) -> UnifiedMax | str:
    """The bounds around two ranges, or the reason why there are none.

    Both ranges lie between the bounds with a margin on each side, as far as float32's
    limits allow. Where it is the lower tail of the scores that does not fit, it is left
    out: a row is computed again for its largest score only.
    """
    decisive = scores if row_maxima is None else row_maxima
    if decisive.width > 2 * LIMIT:
        what = "scores" if row_maxima is None else "largest scores"
        return (
            f"{what} from {decisive.low:g} to {decisive.high:g} span "
            f"{decisive.width:g}; float32 holds {2 * LIMIT:g}"
        )
    room = max(2 * (LIMIT - margin), decisive.width)
    low = max(min(scores.low, decisive.low), decisive.high - room)
    half = round(min((decisive.high - low) / 2 + margin, LIMIT), _DECIMALS)
    return UnifiedMax(round((low + decisive.high) / 2, _DECIMALS), -half, half)


def read_calibration(path: pathlib.Path) -> Calibration:
    """Reads a calibration.

    Raises:
        ConfigError: the file cannot be read, lacks a field, or has a wrong value.
    """
    try:
        return _parse(read_object(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ConfigError(
            f"the softmax calibration {path} cannot be read: {what}; make it with "
            "`fdjax calibrate`"
        ) from error


def shipped_calibration(model: str) -> Calibration | None:
    """The calibration in the package for a model of that name, if there is one."""
    folder = importlib.resources.files("fdjax").joinpath("assets", "softmax")
    for entry in pathlib.Path(str(folder)).glob("*.json"):
        calibration = read_calibration(entry)
        if model.lower() in (name.lower() for name in calibration.models):
            return calibration
    return None


def unified_for(
    softmax: str | pathlib.Path | UnifiedMax,
    model: str | pathlib.Path,
    folder: pathlib.Path,
) -> UnifiedMax | None:
    """The maximum that was asked for, or that a calibration found.

    Args:
        softmax: "auto", "synchronised", a calibration's path, or the maximum itself.
        model: as `LLM` was given it; the package has calibrations by name.
        folder: of the model, which may hold a calibration of its own.

    Raises:
        ConfigError: the calibration cannot be read.
    """
    if isinstance(softmax, UnifiedMax):
        return softmax
    if softmax == "synchronised":
        return None
    if softmax != "auto":
        path = pathlib.Path(softmax).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"softmax is {str(softmax)!r}, which is no file; use 'auto', "
                "'synchronised', three numbers PHI,LOW,HIGH, or a file that `fdjax "
                "calibrate` wrote"
            )
        calibration = read_calibration(path)
    elif (folder / FILE_NAME).is_file():
        calibration = read_calibration(folder / FILE_NAME)
    else:
        calibration = shipped_calibration(str(model))
    return None if calibration is None else calibration.unified


def _parse(fields: dict[str, Any]) -> Calibration:
    fields = dict(fields)
    scheme = fields.pop("scheme")
    if scheme not in ("unified", "synchronised"):
        raise ValueError(f"scheme is {scheme!r}; use 'unified' or 'synchronised'")
    models = fields.pop("models")
    if not isinstance(models, list):
        raise ValueError(f"models is {models!r}; give a list of names")
    unified = None
    if scheme == "unified":
        unified = UnifiedMax(*(float(fields.pop(n)) for n in ("phi", "low", "high")))
    row_maxima = fields.pop("row_maxima", None)
    return Calibration(
        models=tuple(models),
        scores=_range(fields.pop("scores")),
        row_maxima=None if row_maxima is None else _range(row_maxima),
        layers=tuple(
            LayerRanges(_range(layer["scores"]), _range(layer["row_maxima"]))
            for layer in fields.pop("layers", ())
        ),
        texts=tuple(CheckedText(**text) for text in fields.pop("texts", ())),
        unified=unified,
        **fields,
    )


def _range(fields: dict[str, Any]) -> Range:
    return Range(float(fields["low"]), float(fields["high"]))
