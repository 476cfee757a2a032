"""fdjax: LLM inference on GPUs from JAX.

FlashDecoding++Next as Flax models, Pallas kernels and XLA FFI custom calls over a
static paged KV array. `LLM` is the way in; the pure functions are in `fdjax.generate`.
"""

from fdjax.errors import (
    CheckpointError,
    ConfigError,
    MemoryBudgetError,
    RequestError,
    Unsupported,
)
from fdjax.generate.params import SamplingParams
from fdjax.models.config import ModelConfig
from fdjax.serve.llm import LLM
from fdjax.serve.outputs import Chunk, Output
from fdjax.version import __version__

__all__ = [
    "LLM",
    "CheckpointError",
    "Chunk",
    "ConfigError",
    "MemoryBudgetError",
    "ModelConfig",
    "Output",
    "RequestError",
    "SamplingParams",
    "Unsupported",
    "__version__",
]
