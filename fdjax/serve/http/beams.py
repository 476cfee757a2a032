"""The fields of a beam search, in the words of vLLM."""

from typing import Any

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.http.errors import ApiError

_COMMON = (
    "ignore_eos",
    "logit_bias",
    "max_tokens",
    "min_tokens",
    "repetition_penalty",
    "stop_token_ids",
    "temperature",
)
# What a path may ask for besides the fields of a request.
UNLIKE_BEAMS = ("logprobs", "prompt_logprobs", "structured_outputs")
BEAM_FIELDS = ("beam_width", "length_penalty", "early_stopping")


def beam_params(fields: dict[str, Any], defaults: dict[str, Any]) -> BeamSearchParams:
    """What a request with `use_beam_search` asks for.

    Without a `beam_width`, `n` is the width, as in vLLM, and all outputs come back.

    Args:
        fields: of the request, but those that are left out.
        defaults: for `SamplingParams`; what beams have in common with it counts.

    Raises:
        ApiError: a field is for drawn outputs alone.
        RequestError: a value is out of range.
    """
    neutral = vars(SamplingParams())
    for name, value in fields.items():
        known = name in (*_COMMON, *BEAM_FIELDS, "n")
        if name in neutral and not known and value not in (neutral[name], -1, []):
            raise ApiError(
                f"{name} is not for beam search; leave it or use_beam_search out",
                param=name,
            )
    n = fields.get("n", 1)
    width = {"n": n} if "beam_width" in fields else {"beam_width": n}
    limit = {k: v for k, v in defaults.items() if k == "max_tokens"}
    given = {k: v for k, v in fields.items() if k in (*_COMMON, *BEAM_FIELDS)}
    return BeamSearchParams(**(limit | width | given))


def refuse_beams(fields: dict[str, Any]) -> None:
    """Refuses fields of a beam search where none is asked for.

    Raises:
        ApiError: there is one.
    """
    for name in BEAM_FIELDS:
        if name in fields:
            raise ApiError(
                f"{name} is for beam search; set use_beam_search to true", param=name
            )
