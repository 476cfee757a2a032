"""Limits that a request must keep to be good: "ttft:500", "itl:50", milliseconds."""

import math
from collections.abc import Mapping, Sequence

from fdjax.cli.bench.outcome import MEASURES, Outcome
from fdjax.errors import ConfigError


def parse_limits(entries: Sequence[str]) -> dict[str, float]:
    """Limits in milliseconds by the name of what they limit.

    Args:
        entries: each "NAME:MS", or several with spaces or commas between.

    Raises:
        ConfigError: a name is unknown or given twice, or a limit is no positive number.
    """
    limits: dict[str, float] = {}
    for entry in " ".join(entries).replace(",", " ").split():
        name, _, text = entry.partition(":")
        if name not in MEASURES:
            raise ConfigError(
                f"--goodput {entry!r}: there is no {name!r}; limit "
                f"{', '.join(MEASURES)}, as ttft:500"
            )
        if name in limits:
            raise ConfigError(
                f"--goodput limits {name} to {limits[name]:g} and again by {entry!r}; "
                "give one limit"
            )
        limits[name] = _milliseconds(text, entry)
    return limits


def is_good(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    """The request was completed within every limit.

    A measure that a request does not have (there is no time between tokens where it
    made one) breaks no limit; one that the server's silence hides does.
    """
    return outcome.error is None and all(
        _keeps(outcome, name, limit) for name, limit in limits.items()
    )


def _keeps(outcome: Outcome, name: str, limit_ms: float) -> bool:
    value = outcome.measure(name)
    if value is None:
        return name != "tpot" or outcome.output_tokens is not None
    return value * 1e3 <= limit_ms


def _milliseconds(text: str, entry: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(
            f"--goodput {entry!r}: the limit is {text!r}; write milliseconds above 0, "
            "as ttft:500"
        )
    return value
