"""A command whose help shows options whole, and which knows options of vLLM's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.highlighter import RegexHighlighter
    from rich.text import Text

_ALWAYS = "it is always so; leave it out"
_CONFIG = "give a folder with files of your own"
_GRAMMARS = "llguidance serves all structured_outputs; leave it out"
_LOG = "--log-format says how the log is written"
_LOGGED = "every request has one line in the log; leave it out"
_MEMORY = "give --memory-fraction"
_POOLING = "a request for embeddings may have a `pooling`"
_PROMPTS = "see --prefill-order and --max-itl-ms"
_TLS = "TLS is for a proxy in front: docs/tutorials/nginx.md"
_UNREAD = "prompts and outputs are never logged; leave it out"

_OF_THE_SERVER: Mapping[str, str] = {
    "allow_credentials": "keys come in a header, not in cookies; leave it out",
    "api_server_count": "one process serves; leave it out",
    "block_size": "pages have 16 tokens; leave it out",
    "config": "there is no file of options; write them out",
    "default_chat_template_kwargs": "a request may have chat_template_kwargs",
    "disable_log_requests": _LOGGED,
    "disable_log_stats": "/metrics is always there; leave it out",
    "disable_sliding_window": _CONFIG,
    "disable_uvicorn_access_log": _LOGGED,
    "enable_force_include_usage": "a request may have stream_options",
    "enable_log_outputs": _UNREAD,
    "enable_log_requests": _LOGGED,
    "enable_prefix_caching": "it is always on; leave it out",
    "enable_prompt_tokens_details": _ALWAYS,
    "enable_request_id_headers": _ALWAYS,
    "enable_server_load_tracking": "/metrics tells the load; leave it out",
    "enable_sleep_mode": "it can sleep in Python alone, by LLM.sleep",
    "exclude_tools_when_tool_choice_none": _ALWAYS,
    "generation_config": _CONFIG,
    "guided_decoding_backend": _GRAMMARS,
    "hf_config_path": _CONFIG,
    "hf_overrides": _CONFIG,
    "kv_cache_memory_bytes": _MEMORY,
    "load_format": "weights are safetensors, and --random-weights makes them up",
    "log_config_file": _LOG,
    "logits_processors": "a request may have logit_bias, allowed_token_ids, bad_words",
    "long_prefill_token_threshold": _PROMPTS,
    "lora_modules": "merge the adapter into the weights first",
    "max_log_len": _UNREAD,
    "max_logprobs": "a request may ask for 20 a token; leave it out",
    "max_long_partial_prefills": _PROMPTS,
    "max_num_partial_prefills": _PROMPTS,
    "num_gpu_blocks_override": _MEMORY,
    "otlp_traces_endpoint": "set OTEL_EXPORTER_OTLP_ENDPOINT in the environment",
    "override_generation_config": _CONFIG,
    "override_pooler_config": _POOLING,
    "pooler_config": _POOLING,
    "return_tokens_as_token_ids": "a request may have return_token_ids",
    "root_path": "a proxy in front can cut it off a path",
    "rope_scaling": _CONFIG,
    "rope_theta": _CONFIG,
    "scheduling_policy": "--allow-priority lets a request have a priority",
    "seed": "a request may have a seed",
    "ssl_ca_certs": _TLS,
    "ssl_certfile": _TLS,
    "ssl_keyfile": _TLS,
    "stream_interval": "an event has what has come until then; leave it out",
    "structured_outputs_config": _GRAMMARS,
    "uvicorn_log_level": _LOG,
}
"""Options of `vllm serve` that are not there, and what to do instead."""
_SHORT: Mapping[str, str] = {
    "-dp": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-tp": "--tensor-parallel-size",
}
"""What some of them are also called."""


class Command(TyperCommand):
    """As Typer's, with help that cuts no name and more to say of unknown options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help; names wider than their column go on below."""
        from typer import rich_utils

        rich_utils.highlighter = _folding(rich_utils.OptionHighlighter)
        rich_utils.negative_highlighter = _folding(rich_utils.NegativeOptionHighlighter)
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line; an option of vLLM's is refused with what to do."""
        for option in self._unknown(args):
            if remedy := _remedy(option):
                ctx.fail(f"No such option: {option}, which is vLLM's: {remedy}")
        return super().parse_args(ctx, args)

    def _unknown(self, args: list[str]) -> list[str]:
        known = {name for each in self.params for name in each.opts}
        known.update(name for each in self.params for name in each.secondary_opts)
        given = [arg.partition("=")[0] for arg in args]
        written = [one for one in given if one.startswith("--") or one in _SHORT]
        return [option for option in written if option not in {*known, "--help"}]


def _folding(kind: "type[RegexHighlighter]") -> Any:
    """A highlighter of texts that go on in the next line where they are too wide."""

    class Folding(kind):
        def __call__(self, text: "str | Text") -> "Text":
            found = super().__call__(text)
            found.overflow = "fold"
            return found

    return Folding()


def _remedy(option: str) -> str | None:
    from fdjax.serve.vllm_words import ONLY

    name = (
        _SHORT.get(option, option)
        .removeprefix("--")
        .removeprefix("no-")
        .replace("-", "_")
    )
    if name in _OF_THE_SERVER:
        return _OF_THE_SERVER[name]
    return ONLY[name].remedy if name in ONLY else None
