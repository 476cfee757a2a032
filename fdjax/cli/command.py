"""A command whose help shows options whole, and which knows options of vLLM's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.highlighter import RegexHighlighter
    from rich.text import Text

_CONFIG = "give a folder with files of your own"
_LOGGED = "every request has one line in the log; leave it out"
_TLS = "TLS is for a proxy in front: docs/tutorials/nginx.md"

_OF_THE_SERVER: Mapping[str, str] = {
    "api_server_count": "one process serves; leave it out",
    "block_size": "pages have 16 tokens; leave it out",
    "disable_log_requests": _LOGGED,
    "disable_uvicorn_access_log": _LOGGED,
    "enable_log_requests": _LOGGED,
    "enable_prefix_caching": "it is always on; leave it out",
    "enable_sleep_mode": "it can sleep in Python alone, by LLM.sleep",
    "generation_config": _CONFIG,
    "hf_overrides": _CONFIG,
    "load_format": "weights are safetensors, and --random-weights makes them up",
    "override_generation_config": _CONFIG,
    "seed": "a request may have a seed",
    "ssl_certfile": _TLS,
    "ssl_keyfile": _TLS,
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
