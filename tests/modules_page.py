"""The page of all modules, by their docstrings: `python -m tests.modules_page`."""

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

from tests.support.operations import ROOT

PACKAGE = ROOT / "fdjax"
PAGE = ROOT / "docs" / "modules.md"
BEGIN = "<!-- modules -->"

# What lies deeper in these plays the parts that a guide explains.
GUIDED = ("kernels", "models")


def page(text: str) -> str:
    """The page with everything behind its mark written anew."""
    intro, mark, _ = text.partition(BEGIN)
    assert mark, f"{PAGE} has lost its mark {BEGIN}"
    return f"{intro}{BEGIN}\n\n{'\n'.join(_lines())}"


def _lines() -> Iterator[str]:
    single = sorted(path for path in PACKAGE.glob("*.py") if path.stem[0] != "_")
    for layer in _layers():
        folder = PACKAGE / layer
        if not folder.is_dir():
            continue
        yield f"## fdjax.{layer}\n\n{_sentence(folder / '__init__.py')}\n"
        yield from _table(_modules(folder))
    yield "## Beside them\n"
    yield from _table(single)


def _layers() -> list[str]:
    """The packages from top to bottom, as the contract has them."""
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"].split()
    return [name.removeprefix("fdjax.") for name in layers if name != ":"]


def _modules(folder: Path) -> list[Path]:
    """Those of a package; of operations and model families, the package alone."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            found.append(path)
        elif (path / "__init__.py").exists():
            found.append(path / "__init__.py")
            if folder.name not in GUIDED:
                found += _modules(path)
    return found


def _table(paths: list[Path]) -> Iterator[str]:
    yield "| module | in one sentence |\n|---|---|"
    for path in paths:
        yield f"| `{_name(path)}` | {_sentence(path)} |"
    yield ""


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _sentence(path: Path) -> str:
    """The first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{path} has no docstring"
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
