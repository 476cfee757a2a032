"""Options of `fdjax serve`: where it listens, to whom, and for how long."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fdjax.serve.http.crowd import ConnectionLimits


def _sites(values: list[str] | None) -> list[str] | None:
    """Sites as browsers name them, or `*`: any other word would match none.

    Raises:
        BadParameter: one is neither.
    """
    for value in values or ():
        scheme, separator, name = value.partition("://")
        whole = scheme and separator and name and not set(name) & set("/?#, \"'")
        if value != "*" and not whole:
            raise typer.BadParameter(
                f"{value!r} is no site; write it like https://chat.example.com, or * "
                "for any, and repeat the option for several"
            )
    return values


def _option(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Connections", **limits)


@dataclass(frozen=True)
class ConnectionOptions:
    """Where a server listens, and what it takes of its clients."""

    host: Annotated[str, _option("Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, _option("0 takes a free one.", min=0, max=65535)] = 8000
    allowed_hosts: Annotated[
        list[str] | None,
        _option(
            "A name that the server answers to, * for any; may be repeated. By default "
            "those of the loopback where it listens there and has no keys, else any."
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        _option(
            "A site whose scripts may send requests from a browser (CORS), such as "
            "https://chat.example.com, * for any; may be repeated. None by default.",
            callback=_sites,
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        _option(
            "Connections that are served at once; 1024, or as many as there are file "
            "descriptors for.",
            min=1,
        ),
    ] = None
    max_connections_per_address: Annotated[
        int | None,
        _option(
            "The same, of one address. No limit if unset: behind a proxy, all clients "
            "have one.",
            min=1,
        ),
    ] = None
    head_seconds: Annotated[
        float, _option("Until a request's line and headers are there.", min=0.1)
    ] = 10.0
    idle_seconds: Annotated[
        int, _option("That a connection is kept without a request.", min=1)
    ] = 5
    write_seconds: Annotated[
        float, _option("Until a client takes what it was sent.", min=0.1)
    ] = 30.0
    stall_seconds: Annotated[
        float,
        _option(
            "That a step of the engine may take, without compiling; then /health says "
            "503, and new requests are refused.",
            min=0.1,
        ),
    ] = 300.0
    stall_exit_seconds: Annotated[
        float | None,
        _option(
            "After that, until the server ends by itself with status 1.",
            min=0.0,
        ),
    ] = None
    drain_seconds: Annotated[
        float, _option("After a signal, for requests that are under way.", min=0.0)
    ] = 30.0

    def limits(self) -> "ConnectionLimits":
        """How many connections, and how long they may keep still.

        Raises:
            ConfigError: there are not enough file descriptors.
        """
        from fdjax.serve.http.crowd import ConnectionLimits
        from fdjax.serve.http.listening import connections_that_fit

        return ConnectionLimits(
            total=connections_that_fit(self.max_connections),
            by_address=self.max_connections_per_address,
            head_seconds=self.head_seconds,
            idle_seconds=self.idle_seconds,
            write_seconds=self.write_seconds,
        )
