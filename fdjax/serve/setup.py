"""From the words of a user to settings: the model, its sizes, its memory plan."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, SupportsFloat

import jax.numpy as jnp
import numpy as np

from fdjax import device
from fdjax.engine.beam_searches import usual_share
from fdjax.engine.buckets import SMALLEST_PREFILL
from fdjax.engine.lent_pages import LentPages, lends
from fdjax.engine.limits import Limit
from fdjax.engine.policy import StepPolicy
from fdjax.engine.workspace import page_workspace_bytes, workspace_bytes
from fdjax.errors import ConfigError
from fdjax.generate.beam_fields import MAX_BEAMS
from fdjax.generate.checks import shown
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.memory.kv import KVLayout
from fdjax.memory.plan import MemoryPlan, plan_memory
from fdjax.models.calibration import unified_for
from fdjax.models.checkpoint import read_config
from fdjax.models.config import ModelConfig
from fdjax.models.source import locate
from fdjax.models.strict_json import read_object
from fdjax.models.weights import parameter_bytes, parameter_shapes
from fdjax.serve.generation_config import eos_token_ids

DTYPES = ("auto", "bfloat16", "float16", "float32")
_OTHER_NAMES = {"half": "float16", "float": "float32"}  # as in vLLM

# A CPU gains little from more rows; a GPU reads its weights once for all of them.
MAX_NUM_SEQS = {"cpu": 16, "gpu": 256}
# Of 2,048 to 8,192 on an H200, where 512 conversations come at once: the smaller, the
# shorter the longest gaps between tokens, and the later the median first token. With
# 5,120 both were shorter than vLLM's (docs/serving.md, "Steps").
MAX_BATCHED_TOKENS = {"cpu": 2048, "gpu": 5120}
# A search has all of its rows at once, and others wait for them.
MAX_BEAM_WIDTH = 64
# What no device has room for; integers of 32 bits count what is made of them.
_LARGEST, _LARGEST_PAGE = 2**31 - 1, 2**16
_MOST_ROWS, _MOST_STEP_TOKENS = 2**20, 2**24


@dataclass(frozen=True)
class Settings:
    """Everything decided before anything is allocated.

    Attributes:
        folder: where the model is.
        config: the model.
        dtype: of weights, activations and KV array.
        max_model_len: longest sequence, in tokens.
        max_num_seqs: most rows of a batch.
        max_batched_tokens: of one call with prompts.
        memory_fraction: of the device's memory.
        page_size: tokens of a page.
        policy: how prompts and decoding share steps.
        max_beam_width: beams of a search.
        max_num_beams: of all searches that run; `None`: as many as rows.
        steps_per_launch: decode steps of one call; `None`: as suits the platform.
    """

    folder: pathlib.Path
    config: ModelConfig
    dtype: np.dtype
    max_model_len: int
    max_num_seqs: int
    max_batched_tokens: int
    memory_fraction: float
    page_size: int
    policy: StepPolicy
    max_beam_width: int = MAX_BEAM_WIDTH
    max_num_beams: int | None = None
    steps_per_launch: int | None = None

    @staticmethod
    def of(
        model: str | pathlib.Path,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        memory_fraction: float = 0.9,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        page_size: int = 16,
        revision: str | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        softmax: str | pathlib.Path | UnifiedMax = "auto",
        batch_invariant: bool = False,
        policy: StepPolicy | None = None,
        max_beam_width: int = MAX_BEAM_WIDTH,
        max_num_beams: Limit = None,
    ) -> "Settings":
        """Reads the configuration and fills in what was left open; see `LLM`.

        Raises:
            ConfigError: the model is not found or not supported, or a setting is out
                of range.
        """
        folder, fields = _read(model, revision, hf_overrides)
        config = ModelConfig.from_hf(fields)
        config = replace(
            config,
            unified=unified_for(softmax, model, folder),
            eos_token_ids=_ends(config, folder),
            batch_invariant=batch_invariant,
        )
        memory_fraction = fraction("memory_fraction", memory_fraction)
        policy = policy or StepPolicy()
        policy.check_beside(batch_invariant=batch_invariant)
        platform, kind = device.platform(), kind_of_platform()
        rows = MAX_NUM_SEQS[kind] if max_num_seqs is None else max_num_seqs
        tokens = max_num_batched_tokens
        if tokens is None:
            tokens = MAX_BATCHED_TOKENS[kind]
        return Settings(
            folder=folder,
            config=config,
            dtype=_dtype(dtype, config, platform),
            max_model_len=_length(max_model_len, config),
            max_num_seqs=positive("max_num_seqs", rows, _MOST_ROWS),
            max_batched_tokens=positive(
                "max_num_batched_tokens", tokens, _MOST_STEP_TOKENS
            ),
            memory_fraction=memory_fraction,
            page_size=positive("page_size", page_size, _LARGEST_PAGE),
            policy=policy,
            max_beam_width=positive("max_beam_width", max_beam_width, MAX_BEAMS),
            max_num_beams=_num_beams(max_num_beams, max_num_seqs=rows),
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters."""
        return parameter_bytes(parameter_shapes(self.config, dtype=self.dtype))

    @property
    def widest_layout(self) -> KVLayout:
        """The KV array with room for every row; the budget may leave less."""
        layout = self.config.kv_layout(
            num_pages=self.max_num_seqs * -(-self.max_model_len // self.page_size),
            page_size=self.page_size,
            dtype=self.dtype,
        )
        sizes = {"num_rows": self.max_num_seqs, "max_model_len": self.max_model_len}
        return replace(layout, lent=lends(self.config, layout, **sizes))

    def memory_plan(
        self, budget_bytes: int | None = None, *, budget_from: str | None = None
    ) -> MemoryPlan:
        """The plan for a budget, by default what the device offers.

        Args:
            budget_bytes: what the engine may use.
            budget_from: the setting that `budget_bytes` comes from, which an error says
                to raise; by default `budget_bytes` itself.

        Raises:
            MemoryBudgetError: the model does not fit.
        """
        layout, steps = self.widest_layout, {}
        if layout.lent:
            lent = LentPages(
                self.config,
                layout,
                num_rows=self.max_num_seqs,
                widths=(layout.pages_for(self.max_model_len),),
                sizes={},
            )
            least = lent.pages("extend", SMALLEST_PREFILL)
            most = lent.pages("extend", self.max_batched_tokens)
            steps = {"step_pages": max(most, least), "least_step_pages": least}
        if budget_bytes is None:
            budget_bytes = device.memory_budget(self.memory_fraction)
            budget_from = "memory_fraction"
        return plan_memory(
            budget_bytes=budget_bytes,
            weight_bytes=self.weight_bytes,
            workspace_bytes=workspace_bytes(
                self.config,
                dtype=self.dtype,
                num_tokens=self.max_batched_tokens,
                num_rows=self.max_num_seqs,
                max_model_len=self.max_model_len,
                page_size=self.page_size,
                lent=layout.lent,
            ),
            layout=layout,
            page_workspace_bytes=page_workspace_bytes(
                self.config,
                layout,
                num_rows=self.max_num_seqs,
                max_model_len=self.max_model_len,
            ),
            max_model_len=self.max_model_len,
            wanted_tokens=self.max_num_seqs * self.max_model_len,
            budget_from=budget_from or "budget_bytes",
            **steps,
        )


def _read(
    model: str | pathlib.Path,
    revision: str | None,
    overrides: Mapping[str, Any] | None,
) -> tuple[pathlib.Path, dict[str, Any]]:
    """The model's folder and its fields; a lone configuration file is enough."""
    if not isinstance(overrides, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]  (vLLM's may be a function)
        raise ConfigError(
            f"hf_overrides is {shown(overrides)}; give a mapping of fields to values"
        )
    place = locate(model, revision=revision)
    if place.is_file():
        return place.parent, {**_read_file(place), **(overrides or {})}
    return place, dict(read_config(place, overrides))


def _read_file(path: pathlib.Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _ends(config: ModelConfig, folder: pathlib.Path) -> tuple[int, ...]:
    """All end-of-sequence tokens; not those that never come: grammars refuse them."""
    named = dict.fromkeys((*config.eos_token_ids, *eos_token_ids(folder)))
    return tuple(id_ for id_ in named if id_ < config.embedding.vocab_size)


def kind_of_platform() -> Literal["cpu", "gpu"]:
    """Which of the defaults above hold here."""
    return "cpu" if device.platform() == "cpu" else "gpu"


def _dtype(name: str, config: ModelConfig, platform: str) -> np.dtype:
    name = _OTHER_NAMES.get(name, name)
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; use one of {', '.join(DTYPES)}")
    if name == "auto":
        name = "float32" if platform == "cpu" else config.dtype
    return jnp.dtype(name)


def _length(wanted: int | None, config: ModelConfig) -> int:
    if wanted is None:
        return config.max_position
    if wanted > config.max_position:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model was made for "
            f"{config.max_position} tokens; use at most that"
        )
    return positive("max_model_len", wanted)


def _num_beams(wanted: Limit, *, max_num_seqs: int) -> int | None:
    if wanted is None:
        return None
    if wanted == "auto":
        return usual_share(max_num_seqs)
    if positive("max_num_beams", wanted) > max_num_seqs:
        raise ConfigError(
            f"max_num_beams is {wanted}, but max_num_seqs is {max_num_seqs} and each "
            "beam counts as one; lower it, or raise max_num_seqs"
        )
    return wanted


def fraction(name: str, value: Any) -> float:
    """Returns a setting that is a number between 0 and 1.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, SupportsFloat) and 0.0 < (number := float(value)) < 1.0:
        return number
    raise ConfigError(f"{name} is {value!r}; use a fraction between 0 and 1")


def positive(name: str, value: int, most: int = _LARGEST) -> int:
    """Returns a setting that is a whole number from 1 to `most`.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigError(f"{name} is {value}; use a whole number from 1")
    if value > most:
        raise ConfigError(f"{name} is {value}; use {most} at most")
    return value
