"""Plans: how the work of attention over rows of unequal length is shared out."""

from fdjax.kernels.attention_plan.host import Item, Plan, make_plan
from fdjax.kernels.attention_plan.shape import PlanShape, invariant_shape, plan_shape

__all__ = ["Item", "Plan", "PlanShape", "invariant_shape", "make_plan", "plan_shape"]
