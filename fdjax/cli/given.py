"""Which of its options a command was given."""

from collections.abc import Sequence

import typer


def given(context: typer.Context, names: Sequence[str]) -> list[str]:
    """The options of these parameters that are given, be it with their defaults.

    Args:
        context: of the command.
        names: parameters of it.
    """
    options = {each.name: each.opts[0] for each in context.command.params}
    sources = ((name, context.get_parameter_source(name)) for name in names)
    return [
        options[name]
        for name, source in sources
        if source is not None and source.name != "DEFAULT"
    ]
