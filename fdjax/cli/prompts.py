"""Prompts from the command line, a file or stdin."""

import pathlib
import sys

import typer

type Prompt = str | list[int]

_EXAMPLE = (
    "give a prompt (fdjax generate 'Once upon a time'), - to read one from stdin, or "
    "--prompt-file"
)


def gather(
    texts: list[str], prompt_file: pathlib.Path | None, token_ids: list[str]
) -> list[Prompt]:
    """All prompts, in the order: arguments, lines of the file, token ids.

    Args:
        texts: prompts; `-` stands for all of stdin, once.
        prompt_file: one prompt a line; empty lines are skipped.
        token_ids: prompts as "1,2,3".

    Raises:
        typer.BadParameter: there is no prompt, or token ids are not numbers.
        OSError: the file cannot be read.
    """
    if texts.count("-") > 1:
        raise typer.BadParameter("- stands for stdin, which can be read only once")
    prompts: list[Prompt] = [_from_stdin() if text == "-" else text for text in texts]
    if prompt_file is not None:
        lines = prompt_file.read_text(encoding="utf-8", errors="replace").splitlines()
        prompts += [line for line in lines if line.strip()]
    prompts += [_parse(ids) for ids in token_ids]
    if not prompts:
        raise typer.BadParameter(_EXAMPLE)
    return prompts


def _from_stdin() -> str:
    return sys.stdin.read().rstrip("\n")


def _parse(ids: str) -> list[int]:
    try:
        return [int(part) for part in ids.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"prompt ids are {ids!r}; give numbers with commas between, as 1,2,3"
        ) from None
