"""What `fdjax inspect` found out, as plain data."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from fdjax import device
from fdjax.cli.errors import in_options
from fdjax.cli.kernels import explanations
from fdjax.cli.shortage import smallest_plan, would_fit
from fdjax.errors import MemoryBudgetError
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig
from fdjax.models.weights import parameter_shapes
from fdjax.serve.setup import Settings


@dataclass(frozen=True)
class Model:
    """The model in numbers.

    `window` is the smallest sliding window of a layer; `softmax` is the scheme of
    decoding, with its bounds.
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    window: int | None
    tied: bool
    softmax: str


@dataclass(frozen=True)
class Parameters:
    """Parameters of one role: the same place in every layer, `*` for its number."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    elements: int
    num_bytes: int


@dataclass(frozen=True)
class Memory:
    """The memory plan; sizes in bytes.

    Where the budget is too small, `missing_bytes` says by how much, the plan is of the
    least that would do, and `would_fit` says what else would. The largest step has
    `step_pages` of the KV array's end, or lies in the workspace.
    """

    budget_bytes: int
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    unused_bytes: int
    page_bytes: int
    token_bytes: int
    page_size: int
    num_pages: int
    num_tokens: int
    step_pages: int
    max_model_len: int
    max_num_seqs: int
    missing_bytes: int
    would_fit: list[str]


@dataclass(frozen=True)
class Report:
    """Everything `fdjax inspect` shows.

    Attributes:
        device: what the plan is for.
        dtype: of weights, activations and KV.
        model: the model in numbers.
        parameters: by role, in the order of the model.
        num_parameters: elements of all of them.
        memory: the plan.
        kernels: for each operation of a decode step, what serves it and why.
        problem: why the model does not fit, in the command's options, or `None`.
    """

    device: str
    dtype: str
    model: Model
    parameters: list[Parameters]
    num_parameters: int
    memory: Memory
    kernels: list[str]
    problem: str | None


def report_of(settings: Settings, name: str, budget_bytes: int | None) -> Report:
    """Plans a model, whether or not it fits; allocates nothing."""
    problem = None
    try:
        plan = settings.memory_plan(budget_bytes, budget_from="--budget")
    except MemoryBudgetError as error:
        plan, problem = smallest_plan(settings), in_options(error)
    shapes = parameter_shapes(settings.config, dtype=settings.dtype)
    parameters = folded(shapes)
    return Report(
        device=f"{device.platform()} ({device.kind()})",
        dtype=settings.dtype.name,
        model=_model(settings.config, name),
        parameters=parameters,
        num_parameters=sum(row.elements for row in parameters),
        memory=_memory(settings, plan, budget_bytes),
        kernels=explanations(settings, plan),
        problem=problem,
    )


def folded(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> list[Parameters]:
    """Parameters by role: those of all layers on one line where they are alike."""
    counts: dict[tuple[str, tuple[int, ...], str], int] = {}
    for path, shape in shapes.items():
        role = re.sub(r"^layers\.\d+\.", "layers.*.", path)
        key = role, shape.shape, shape.dtype.name
        counts[key] = counts.get(key, 0) + 1
    return [
        Parameters(
            path=role,
            shape=shape,
            dtype=dtype,
            count=count,
            elements=count * math.prod(shape),
            num_bytes=count * math.prod(shape) * jax.numpy.dtype(dtype).itemsize,
        )
        for (role, shape, dtype), count in counts.items()
    ]


def _model(config: ModelConfig, name: str) -> Model:
    windows = (layer.attention.window for layer in config.layers)
    return Model(
        name=name,
        family=config.family,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=max(layer.mlp.size for layer in config.layers),
        vocab_size=config.embedding.vocab_size,
        max_position=config.max_position,
        window=min((each for each in windows if each is not None), default=None),
        tied=config.embedding.tied,
        softmax=_softmax(config.unified),
    )


def _softmax(unified: UnifiedMax | None) -> str:
    if unified is None:
        return "synchronised"
    low, high = unified.phi + unified.low, unified.phi + unified.high
    return f"unified maximum {unified.phi:g}, for scores from {low:g} to {high:g}"


def _memory(settings: Settings, plan: MemoryPlan, budget_bytes: int | None) -> Memory:
    """The plan beside the budget; `None` stands for what the device offers."""
    layout = plan.layout
    if budget_bytes is None:
        budget_bytes = device.memory_budget(settings.memory_fraction)
    missing = max(plan.budget_bytes - budget_bytes, 0)
    return Memory(
        budget_bytes=budget_bytes,
        weight_bytes=plan.weight_bytes,
        workspace_bytes=plan.budget_bytes
        - plan.weight_bytes
        - plan.kv_bytes
        - plan.free_bytes,
        kv_bytes=plan.kv_bytes,
        unused_bytes=plan.free_bytes,
        page_bytes=layout.page_bytes,
        token_bytes=layout.page_bytes // layout.page_size,
        page_size=layout.page_size,
        num_pages=layout.num_pages,
        num_tokens=layout.num_tokens,
        step_pages=plan.step_pages,
        max_model_len=plan.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        missing_bytes=missing,
        would_fit=would_fit(settings, budget_bytes) if missing else [],
    )
