"""`AnyParams`: whatever may be asked of a prompt."""

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams

type AnyParams = SamplingParams | BeamSearchParams | PoolingParams


def num_outputs(params: AnyParams) -> int:
    """How many outputs a prompt has."""
    if isinstance(params, BeamSearchParams) and params.n is None:
        return params.beam_width
    return params.n or 1
