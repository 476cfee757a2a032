"""fdjax: LLM inference on GPUs from JAX.

FlashDecoding++Next as Flax models, Pallas kernels and XLA FFI custom calls over a
static paged KV array. `LLM` is the way in; the pure functions are in `fdjax.generate`.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from fdjax.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    MemoryBudgetError,
    QueueFullError,
    RequestError,
    Unsupported,
)
from fdjax.version import __version__

if TYPE_CHECKING:
    from fdjax.generate.beam_fields import BeamSearch
    from fdjax.generate.beam_params import BeamSearchParams
    from fdjax.generate.params import SamplingParams
    from fdjax.generate.pooling_params import PoolingParams
    from fdjax.generate.softmax_counts import SoftmaxStatistics
    from fdjax.generate.structured import StructuredOutputs
    from fdjax.kernels.decode_attention.unified import UnifiedMax
    from fdjax.models.config import ModelConfig
    from fdjax.serve.async_llm import AsyncLLM
    from fdjax.serve.beam_search import BeamSearchOutput
    from fdjax.serve.embedding import EmbeddingOutput, ScoreOutput
    from fdjax.serve.llm import LLM
    from fdjax.serve.outputs import Chunk, Completion, Output

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearch",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CheckpointError",
    "Chunk",
    "Completion",
    "ConfigError",
    "EmbeddingOutput",
    "EngineDeadError",
    "MemoryBudgetError",
    "ModelConfig",
    "Output",
    "PoolingParams",
    "QueueFullError",
    "RequestError",
    "SamplingParams",
    "ScoreOutput",
    "SoftmaxStatistics",
    "StructuredOutputs",
    "UnifiedMax",
    "Unsupported",
    "__version__",
]

# JAX and Flax take seconds to import; `fdjax --help` must not wait for them.
_HOMES = {
    "LLM": "fdjax.serve.llm",
    "AsyncLLM": "fdjax.serve.async_llm",
    "BeamSearch": "fdjax.generate.beam_fields",
    "BeamSearchOutput": "fdjax.serve.beam_search",
    "BeamSearchParams": "fdjax.generate.beam_params",
    "Chunk": "fdjax.serve.outputs",
    "Completion": "fdjax.serve.outputs",
    "EmbeddingOutput": "fdjax.serve.embedding",
    "ModelConfig": "fdjax.models.config",
    "Output": "fdjax.serve.outputs",
    "PoolingParams": "fdjax.generate.pooling_params",
    "SamplingParams": "fdjax.generate.params",
    "ScoreOutput": "fdjax.serve.embedding",
    "SoftmaxStatistics": "fdjax.generate.softmax_counts",
    "StructuredOutputs": "fdjax.generate.structured",
    "UnifiedMax": "fdjax.kernels.decode_attention.unified",
}


def _quiet_xla() -> None:
    """Leaves out XLA's warnings, unless the process has said that it wants them.

    Of programs for a GPU it warns that it "can't reduce" their memory from hundreds of
    GiB: its own estimate, which nothing allocates. The level is read when JAX is
    imported, which sets one, too: afterwards it is too late.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _quiet_xla()
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *globals()]
