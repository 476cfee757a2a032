"""Keywords of vLLM's `LLM`: in our words, without effect, or refused with a remedy."""

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fdjax.errors import ConfigError
from fdjax.generate.checks import shown

ALIASES = {"gpu_memory_utilization": "memory_fraction", "block_size": "page_size"}
"""Keywords of vLLM, and what they are called here."""


@dataclass(frozen=True)
class Only:
    """A keyword of which only some values are served.

    Attributes:
        values: these, which change nothing.
        remedy: what to do instead of any other.
    """

    values: tuple[object, ...]
    remedy: str


_ONE = Only((1, None), "one device computes; leave it out")
_OFF, _UNSET = (None, False), (None,)
_NO_LORA = "merge the adapter into the weights first"
_NO_DRAFTS = Only(_UNSET, "there is no speculative decoding yet; leave it out")
_NO_IMAGES = Only(_UNSET, "models of text alone are served")
_COMPILED = "XLA compiles every step, `warm_up` ahead; leave it out"
_WEIGHTS = Only(_UNSET, "load a checkpoint of bfloat16, float16 or float32")
_TOKENIZER = Only(_UNSET, "the tokenizer is that of the model's folder; put it there")
_GRAMMARS = Only(_UNSET, "give SamplingParams(structured_outputs=...)")
_ATTENTION = Only(_UNSET, "see `fdjax inspect` for what serves, and why")
_BOTH = "a decoder both generates and embeds; leave it out"
_POOLING = Only(_UNSET, "give PoolingParams(pooling=...) with each call")
_FORMATS = Only(("auto", "safetensors", "dummy"), "convert the weights to safetensors")

ONLY: Mapping[str, Only] = {
    "tensor_parallel_size": _ONE,
    "pipeline_parallel_size": _ONE,
    "data_parallel_size": _ONE,
    "decode_context_parallel_size": _ONE,
    "prefill_context_parallel_size": _ONE,
    "enable_expert_parallel": Only(_OFF, "there are no experts; leave it out"),
    "distributed_executor_backend": Only((None, "uni"), "one device computes"),
    "disable_custom_all_reduce": Only((None, False, True), "leave it out"),
    "trust_remote_code": Only(
        _OFF, "no code of a repository is run; take a family that fdjax knows"
    ),
    "quantization": _WEIGHTS,
    "quantization_config": _WEIGHTS,
    "cpu_offload_gb": Only((None, 0), "weights stay on the device"),
    "swap_space": Only((None, 0, 4), "what is put back is computed anew"),
    "kv_cache_dtype": Only((None, "auto"), "keys and values have the model's dtype"),
    "kv_cache_memory_bytes": Only(_UNSET, "give memory_fraction"),
    "num_gpu_blocks_override": Only(_UNSET, "give memory_fraction"),
    "enable_chunked_prefill": Only((None, True), "long prompts always go in chunks"),
    "scheduling_policy": Only((None, "fcfs"), "AsyncLLM.generate takes a priority"),
    "async_scheduling": Only((None, True), "steps are always launched ahead"),
    "disable_sliding_window": Only(_OFF, "give hf_overrides"),
    "rope_scaling": Only(_UNSET, "give hf_overrides"),
    "rope_theta": Only(_UNSET, "give hf_overrides"),
    "enforce_eager": Only(_OFF, _COMPILED),
    "max_seq_len_to_capture": Only((None, 8192), _COMPILED),
    "cuda_graph_sizes": Only(_UNSET, _COMPILED),
    "compilation_config": Only(_UNSET, _COMPILED),
    "attention_backend": _ATTENTION,
    "attention_config": _ATTENTION,
    "tokenizer": _TOKENIZER,
    "tokenizer_revision": _TOKENIZER,
    "tokenizer_mode": Only((None, "auto"), _TOKENIZER.remedy),
    "skip_tokenizer_init": Only(_OFF, "take the tokenizer out of the model's folder"),
    "hf_token": Only(_OFF, "set HF_TOKEN in the environment"),
    "download_dir": Only(_UNSET, "set HF_HOME in the environment"),
    "hf_config_path": Only(_UNSET, "give hf_overrides, or a folder of your own"),
    "config_format": Only((None, "auto", "hf"), "give a folder with a config.json"),
    "code_revision": Only(_UNSET, "no code of a repository is run"),
    "model_impl": Only((None, "auto"), "there is one implementation of each family"),
    "runner": Only((None, "auto", "generate", "pooling"), _BOTH),
    "convert": Only((None, "auto", "none", "embed"), _BOTH),
    "task": Only((None, "auto", "generate", "embed", "score"), _BOTH),
    "pooler_config": _POOLING,
    "override_pooler_config": _POOLING,
    "logits_processors": Only(_UNSET, "write a loop of your own: docs/usage.md"),
    "max_logprobs": Only((None, 20), "SamplingParams take up to 20"),
    "logprobs_mode": Only((None, "raw_logprobs"), "these are what there is"),
    "structured_outputs_config": _GRAMMARS,
    "guided_decoding_backend": _GRAMMARS,
    "enable_lora": Only(_OFF, _NO_LORA),
    "max_lora_rank": Only(_UNSET, _NO_LORA),
    "max_loras": Only(_UNSET, _NO_LORA),
    "enable_sleep_mode": Only((None, False, True), "it can always sleep"),
    "chat_template": Only(_UNSET, "it is that of the model's folder; put it there"),
    "reasoning_parser": Only(_UNSET, "`fdjax serve --reasoning-parser` takes it"),
    "device": Only((None, "auto"), "set JAX_PLATFORMS in the environment"),
    "kv_transfer_config": Only(_UNSET, "keys and values stay in one process"),
    "enable_prompt_embeds": Only(_OFF, "prompts are texts or token ids"),
    "speculative_config": _NO_DRAFTS,
    "spec_method": _NO_DRAFTS,
    "spec_model": _NO_DRAFTS,
    "limit_mm_per_prompt": _NO_IMAGES,
    "mm_processor_kwargs": _NO_IMAGES,
    "allowed_local_media_path": Only((None, ""), _NO_IMAGES.remedy),
    "allowed_media_domains": _NO_IMAGES,
    "served_model_name": Only(_UNSET, "`fdjax serve --served-model-name` takes it"),
    "disable_log_stats": Only((None, False, True), "outputs always have metrics"),
}
"""Keywords of vLLM of which only some values are served, as they change nothing."""


def in_our_words(
    given: Mapping[str, Any],
    own: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
) -> dict[str, Any]:
    """Keywords of a call of `LLM`, in our words.

    Args:
        given: those that it does not know itself.
        own: those that it does and that others may stand for, with their values.
        parameters: all that it knows.

    Returns:
        `own`, with the values that others have brought.

    Raises:
        ConfigError: a value is not served, or one thing came by two words.
        TypeError: there is no such keyword.
    """
    ours = dict(own)
    for name, value in given.items():
        known = ALIASES.get(name, name)
        if name in ALIASES:
            if value is None:  # vLLM's own default
                continue
            if own[known] != parameters[known].default:
                raise ConfigError(f"{known} and {name} are one thing; give one of them")
            ours[known] = value
        elif name == "load_format":
            ours["random_weights"] |= _is_dummy(value)
        elif name in ONLY:
            _check(name, value, ONLY[name])
        else:
            raise TypeError(_unknown(name, [*parameters, *ALIASES, *ONLY]))
    return ours


def _check(name: str, value: object, only: Only) -> None:
    if any(_same(value, one) for one in only.values):
        return
    values = " or ".join(str(one) for one in only.values if one is not None)
    served = f"but fdjax serves {values} only" if values else "which is not served"
    raise ConfigError(f"{name} is {shown(value)}, {served}: {only.remedy}")


def _same(value: object, served: object) -> bool:
    """Whether they are equal; `True` is no 1, and an array has no truth to ask for."""
    if not isinstance(value, str | int | float | None):
        return False
    return value == served and isinstance(value, bool) == isinstance(served, bool)


def _is_dummy(value: object) -> bool:
    _check("load_format", value, _FORMATS)
    return value == "dummy"


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"LLM has no option {name}{hint}"
