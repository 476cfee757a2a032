"""fdjax's engine in Tunix: `ClusterConfig(rollout_engine=FdjaxRollout)`."""

from fdjax.integrations.tunix.rollout import FdjaxRollout

__all__ = ["FdjaxRollout"]
