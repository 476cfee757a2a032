"""`longest_search`: up to which length a beam search can tell scores apart."""

import numpy as np

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_state import OUT

# Of a token, on average: the likeliest of each step have at least the share that each
# of e ** 16, nine million, would have. No vocabulary has as many.
_LOWEST_LOGPROB = -16.0

# How many times less than half of `OUT` such a token is.
_MOST_FACTOR = float(OUT) / 2 / _LOWEST_LOGPROB

# Over this the log-probability next to 0 is the least that is no subnormal, which would
# be flushed to 0.
_MOST_DIVISOR = float(np.finfo(np.float32).eps / np.finfo(np.float32).tiny)


def longest_search(params: BeamSearchParams) -> int:
    """The largest `max_tokens` with which scores can be told apart.

    With `n` tokens of log-probability `l` a score is `l * n / n ** length_penalty`. By
    a penalty below 0 it must stay better than `OUT`, which is in the place of
    hypotheses that there are not. By one above 0 different sums must stay different;
    and where few tokens are allowed, so that there may be fewer beams than
    `beam_width`, the score of `OUT`, the sum of those that there are not, must stay
    worse than that of a token.
    """
    penalty = params.length_penalty
    if penalty < 0:
        return int(_MOST_FACTOR ** (1 / (1 - penalty)))
    has_few = params.allowed_token_ids is not None
    has_few |= params.structured_outputs is not None
    most = _MOST_FACTOR if has_few else _MOST_DIVISOR
    return int(most ** (1 / max(penalty, 1.0)))
