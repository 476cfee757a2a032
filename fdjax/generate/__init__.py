"""Prefill, decode and sampling as pure functions, and `generate`, one jitted call.

For people who bring their own loop: `prefill` and `decode` run the model, `init_state`
and `sample` choose tokens, `generate` is all of it. Jit them with what they update in
place (the KV array, `GenerationProgress`) donated.
"""

from fdjax.generate.loop import generate
from fdjax.generate.plan import SamplingPlan, plan_of
from fdjax.generate.progress import GenerationProgress, GenerationRules, decode_step
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import SamplingState, init_state
from fdjax.generate.steps import decode, prefill, score

__all__ = [
    "GenerationProgress",
    "GenerationRules",
    "Sampled",
    "SamplingPlan",
    "SamplingState",
    "decode",
    "decode_step",
    "generate",
    "init_state",
    "plan_of",
    "prefill",
    "sample",
    "score",
]
