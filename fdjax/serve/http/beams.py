"""The fields of a beam search, in the words of vLLM."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fdjax.generate.beam_fields import COMMON, BeamSearch
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import field_of_draws
from fdjax.serve.http.errors import ApiError

# What a path may ask for besides the fields of a request.
_ASKED_BESIDE = ("logprobs", "prompt_logprobs", "structured_outputs")
_OF_BEAMS = tuple(one.name for one in dataclasses.fields(BeamSearch))
_TAKEN = (*COMMON, "temperature", *_OF_BEAMS)
# The temperature of clients that always send one: it is what a request without one has.
UNSAID = 1.0


def given_fields(body: object) -> dict[str, Any]:
    """The fields of a body that are for beam search alone, without those left out."""
    given = {name: getattr(body, name) for name in _OF_BEAMS}
    return {name: value for name, value in given.items() if value is not None}


def beam_params(
    fields: dict[str, Any], defaults: dict[str, Any], *, stream_best: bool
) -> BeamSearchParams:
    """What a request with `use_beam_search` asks for.

    Without a `beam_width`, `n` is the width, as in vLLM, and all outputs come back.

    Args:
        fields: of the request, but those that are left out.
        defaults: for `SamplingParams`; what beams have in common with it counts.
        stream_best: see `BeamSearchParams`.

    Raises:
        ApiError: a field is for drawn outputs alone.
        RequestError: a value is out of range.
    """
    asked = {name: defaults.get(name) for name in _ASKED_BESIDE}
    fields = {name: one for name, one in asked.items() if one is not None} | fields
    name = field_of_draws(fields)
    if name is not None:
        raise ApiError(
            f"{name} is not for beam search; leave it or use_beam_search out",
            param=name,
        )
    n = fields.get("n", 1)
    width = {"n": n} if "beam_width" in fields else {"beam_width": n}
    limit = {k: v for k, v in defaults.items() if k == "max_tokens"}
    given = {k: v for k, v in fields.items() if k in _TAKEN}
    if given.get("temperature") == UNSAID:
        del given["temperature"]
    return BeamSearchParams(**(limit | width | given), stream_best=stream_best)


def refuse_beams(names: Sequence[str]) -> None:
    """Refuses fields of a beam search where none is asked for.

    Args:
        names: of the fields.

    Raises:
        ApiError: there is one.
    """
    for name in names:
        param = "stream_options" if name == "include_best" else name
        raise ApiError(
            f"{name} is for beam search; set use_beam_search to true", param=param
        )
