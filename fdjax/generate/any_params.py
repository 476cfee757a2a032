"""`AnyParams`: whatever may be asked of a prompt."""

from dataclasses import fields

from fdjax.generate.beam_fields import COMMON
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams

type AnyParams = SamplingParams | BeamSearchParams | PoolingParams


def num_outputs(params: AnyParams) -> int:
    """How many outputs a prompt has."""
    if isinstance(params, BeamSearchParams) and params.n is None:
        return params.beam_width
    return params.n or 1


def by_kind[P](params: P) -> P | BeamSearchParams:
    """The same; `SamplingParams` that have a `beam_search` become `BeamSearchParams`.

    Whatever lets requests in begins with this: behind it a search is a kind of its own,
    and no part of `SamplingParams` that could be overlooked.
    """
    if not isinstance(params, SamplingParams) or params.beam_search is None:
        return params
    search = params.beam_search
    return BeamSearchParams(
        n=params.n,
        **{one.name: getattr(search, one.name) for one in fields(search)},
        **{name: getattr(params, name) for name in COMMON},
    )
