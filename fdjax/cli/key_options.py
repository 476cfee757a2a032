"""Options of `fdjax serve`: whose requests are served, and what they may ask for."""

import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fdjax.serve.http.keyring import Keyring


def _option(*names: str, text: str, **rules: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Keys", **rules)


@dataclass(frozen=True)
class KeyOptions:
    """Who may ask, by their keys."""

    api_key: Annotated[
        list[str] | None,
        _option(
            text="Required of clients; may be repeated. Without one, all are served.",
            envvar="FDJAX_API_KEY",
        ),
    ] = None
    api_key_file: Annotated[
        pathlib.Path | None,
        _option(
            text="Names, keys and quotas of clients, in TOML; read again at SIGHUP.",
            dir_okay=False,
        ),
    ] = None
    allow_priority: Annotated[
        bool,
        _option(
            "--allow-priority",
            text="Requests may go before others by their priority; else any but 0 is "
            "refused, but for keys whose file allows it.",
        ),
    ] = False

    def keyring(self) -> "Keyring":
        """The keys, of which the file was read.

        Raises:
            ConfigError: there is something wrong with one.
        """
        from fdjax.serve.http.keyring import Keyring

        return Keyring(
            self.api_key or (), self.api_key_file, may_prioritise=self.allow_priority
        )
