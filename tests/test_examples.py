"""The programs of `examples/` run, and say something."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_runs(program: Path, capsys: pytest.CaptureFixture[str]):
    runpy.run_path(str(program), run_name="__main__")
    assert len(capsys.readouterr().out.split()) > 5


def test_the_page_names_each():
    page = (FOLDER / "README.md").read_text()
    assert all(f"`{program.name}`" in page for program in PROGRAMS)
    assert page.count(".py`") == len(PROGRAMS)
