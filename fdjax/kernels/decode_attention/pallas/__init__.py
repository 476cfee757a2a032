"""`decode_attention` in Pallas: the form to extend by a score function."""

from fdjax.kernels.decode_attention.pallas.call import IMPL, attend_with_scores
from fdjax.kernels.decode_attention.pallas.config import LaunchConfig
from fdjax.kernels.decode_attention.pallas.scores import ScoreFn

__all__ = ["IMPL", "LaunchConfig", "ScoreFn", "attend_with_scores"]
