"""README and docs: examples run, tables match the results, commands are CI's."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import attention_tables, kernel_tables, report, tables
from fdjax.errors import to_install
from tests import gpu_record, modules_page, programs_page

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text())
    return [code for name, code in found if name == language]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_the_notebook_names_its_pages():
    """The site's navigation has its index alone."""
    folder = ROOT / "docs" / "notebook"
    named = LINK.findall((folder / "index.md").read_text())
    assert {*named} == {page.name for page in folder.glob("2*.md")}


def test_there_is_one_way_to_install():
    """Errors that miss an extra name the README's."""
    command = re.compile(r"uv pip install [^`\n]*(?:--extra (\w+)|\.\[)[^`\n]*")
    for page in PAGES:
        for found in command.finditer(page.read_text()):
            assert to_install(found[1]).endswith(found[0]), page
    assert to_install("serve").partition(": ")[2] in PAGES[0].read_text()
    for module in (ROOT / "fdjax").rglob("*.py"):
        assert not re.search(r"\bfdjax\[", module.read_text()), module


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, "python")], ids=_name
)
def test_examples_run(page: Path):
    """A page's `python` blocks run in order, as one program; `py` blocks do not."""
    program = "\n".join(_blocks(page, "python"))
    exec(compile(program, _name(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name == "tutorials" and _blocks(page, "sh")],
    ids=_name,
)
def test_commands_of_tutorials_run(page: Path, tmp_path: Path):
    """A tutorial's `sh` blocks run in order, in one shell; indented ones do not."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "fdjax"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fdjax "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(_blocks(page, "sh"))],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", report.PAGES)
def test_results_tables_are_generated(name: str):
    text = (ROOT / name).read_text()
    assert text == report.page(name, text), "run `python -m benchmarks.report`"


@pytest.mark.parametrize("name", report.CHARTS)
def test_charts_are_drawn_from_the_results(name: str):
    drawn = (ROOT / name).read_text()
    assert drawn == report.CHARTS[name](), "run `python -m benchmarks.report`"
    ElementTree.fromstring(drawn)
    shown = [page for page in PAGES if Path(name).name in page.read_text()]
    assert shown, "no page shows it"


def test_every_block_is_generated():
    """No page has a marker that nothing writes."""
    begin = re.compile(r"<!-- results: (\w+) -->")
    for page in PAGES:
        named = begin.findall(page.read_text())
        written = report.PAGES.get(_name(page), ())
        assert {*named} - {"gpu"} == {*written}, page


def test_the_page_of_gpu_runs_is_generated():
    text = gpu_record.PAGE.read_text()
    wanted = gpu_record.page(text, gpu_record.load(gpu_record.RECORD))
    assert text == wanted, "run `python -m tests.gpu_record page`"


def test_a_table_without_results_says_so(tmp_path: Path):
    assert tables.decode(report.load_rows(tmp_path / "decode.json")) == tables.NOTHING


def test_a_table_shows_each_result_and_its_source():
    row: dict[str, Any] = {
        "model": "llama3-8b",
        "batch": 8,
        "context": 32768,
        "ms_per_step": 51.627,
        "tokens_per_s": 1551.0,
        "prefill_ms": 10497.29,
        "fraction_of_ceiling": 0.205,
        "spread": 0.0012,
        "jax": "0.11.2",
        "commit": "abc1234",
        "date": "2026-11-21",
    }
    lines = tables.decode([row]).splitlines()
    cells = "llama3-8b | 8 x 32,768 | 51.63 | 1,551 | 20% | 0.1% | 10,497 | abc1234"
    assert lines[2] == f"| {cells} |"
    assert lines[-1] == "Measured 2026-11-21, jax 0.11.2."


def test_a_line_names_the_commit_of_its_steps_or_of_each():
    row: dict[str, Any] = {"ms_per_step": 4.0, "jax": "0.11.2", "date": "2026-11-21"}
    rows = [
        row | {"model": "a", "batch": 8, "commit": "bbb"},
        row | {"model": "a", "batch": 1, "commit": "aaa"},
        row | {"model": "b", "batch": 64, "commit": "aaa"},
        row | {"model": "b", "batch": 1, "commit": "aaa"},
    ]
    lines = tables.by_batch(rows, "model").splitlines()
    assert lines[0] == "| model | 1 | 8 | 64 | commit |"
    assert lines[2:4] == [
        "| a | 4.00 | 4.00 |  | aaa / bbb |",
        "| b | 4.00 |  | 4.00 | aaa |",
    ]
    assert lines[-1] == "Measured 2026-11-21, jax 0.11.2."


def test_a_step_stands_beside_the_other_engine_of_its_shape():
    step = {"model": "m", "batch": 8, "context": 1024, "ms_per_step": 4.0}
    row = step | {"fraction_of_ceiling": 0.75}
    peer = step | {"engine": "other", "what": "decode", "ms_per_step": 5.0}
    lines = tables.beside([row, row | {"batch": 9}], [peer]).splitlines()
    assert lines[2:4] == ["| 8 x 1,024 | **4.00** | 5.00 | 25% | 3.00 |", ""]
    assert "25% to 25% faster than from other, at up to 75%" in lines[4]


def test_loads_are_those_with_prompts_beside_decoding():
    row: dict[str, Any] = {"requests_per_s": 17.0, "commit": "abc1234"}
    row |= {"ttft_ms": [20.8, 96.2, 1220.4], "tpot_ms": [5.8, 11.1, 25.6]}
    own = [
        row | {"engine": "fdjax", "load": load, "mixed_steps": mixed} | rate
        for load in tables.LOADS
        for mixed, rate in ((False, {"requests_per_s": 16.0}), (True, {}))
    ]
    peer = row | {"engine": "vllm", "version": "0.26.0"}
    peers = [peer | {"load": load} for load in tables.LOADS]
    lines = tables.online([*own, *peers]).splitlines()
    assert lines[0].count("vLLM 0.26 |") == 3
    first, later = "21 / 96 / 1,220", "5.8 / 11 / 26"
    cells = f"{first} | {first} | {later} | {later} | 17.0 | 17.0 | abc1234"
    assert lines[2:] == [f"| {told} | {cells} |" for told in tables.LOADS.values()]


def test_prompts_have_a_table_of_their_own():
    row: dict[str, Any] = {"us": 1034.8, "flashinfer_us": 1018.0, "spread": 0.16}
    faster: dict[str, Any] = {"us": 985.5, "device_us": 971.2, "tflop_s": 557}
    rows = [
        row | {"case": "prefill-8x1024", "tflop_s": 531, "commit": "abc1234"},
        row | faster | {"case": "prefill-8x1024-unified", "commit": "abc1234"},
        row | {"case": "64@32704", "tflop_s": 427, "commit": "abc1234"},
        row | {"case": "prefill-1x64-group1", "tflop_s": 427, "commit": "abc1234"},
        row | {"case": "64x1016", "gb_s": 3952},
    ]
    lines = attention_tables.prefills(rows).splitlines()
    speeds = "1,034.8 |  | 531 | 985.5 | 971.2 | 557 | +5.0%"
    assert lines[2] == f"| 8 x 1,024 | {speeds} | 1,018 | 16% | abc1234 |"
    assert [line.split(" | ")[0] for line in lines[3:]] == [
        "| 64 after 32,704",
        "| 1 x 64, each head its own keys",
    ]


def test_rows_of_attention_are_told_in_words():
    row = {"us": 67.4, "spread": 0.03, "commit": "abc1234"}
    cases = ("63x512+1x32768", "8x32768-shared", "4x16x8192-shared+1024", "6x10+20@30")
    lines = attention_tables.unequal(
        [row | {"case": case} for case in cases]
    ).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| 63 x 512, 1 x 32,768",
        "| 8 x (32,768 shared)",
        "| 4 groups of 16 x (8,192 shared + 1,024)",
        "| 6 x 10, and 20 after 30 of a prompt",
    ]


def test_steps_stand_beside_those_of_one_call():
    row = {"model": "m", "batch": 1, "prefill_ms": 3000.0, "commit": "abc1234"}
    rows = [
        row | {"layers": "one by one", "ms_per_step": 5.0},
        row | {"layers": "one call", "ms_per_step": 4.5, "prefill_ms": 2000.0},
        row | {"model": "other", "layers": "one call", "ms_per_step": 4.0},
    ]
    lines = kernel_tables.chains(rows).splitlines()
    assert lines[2:] == ["| m | 5.00 → 4.50 | 3,000 → 2,000 | abc1234 |"]


def test_a_kernel_of_a_trace_is_told_by_its_folder():
    times = {"launches": 65.0, "advance_us": 2.85, "duration_us": 14.62}
    one = times | {"kernel": "void fdjax::add_norm::kernel<T>", "us_per_step": 198.0}
    step = {"batch": 8, "context": 1024, "ms_per_step": 4.0, "commit": "abc1234"}
    rows = [step | {"kernels": [one, one | {"kernel": "void fdjax::draw::kernel"}]}]
    lines = kernel_tables.traced(rows, "add_norm").splitlines()
    assert lines[2:] == ["| 8 x 1,024 | 65 | 2.9 | 14.6 | 4.95% | abc1234 |"]


def test_the_home_page_has_the_tables_of_the_readme():
    text = report.of_readme("Features")
    assert text.startswith("| what | tested |") and text.count("\n") > 10
    assert "](beam-search.md)" in text and "](docs/" not in text
    with pytest.raises(ValueError, match="no Colours"):
        report.of_readme("Colours")


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        report.rewritten("no table here", "decode", "block")


def test_the_readme_has_two_commands():
    """`.ci/run` takes the first block to try the package, the second to test it."""
    first, second = _blocks(ROOT / "README.md", "sh")
    assert first.startswith("pip install uv && ") and " fdjax generate " in first
    assert "uv pip install -c constraints.txt -e ." in first
    assert second.startswith("uv pip install -c constraints.txt --group test && ")
    assert "uv run --no-sync pytest" in second


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page: Path):
    targets = LINK.findall(page.read_text())
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


def test_the_page_of_modules_is_generated():
    text = modules_page.PAGE.read_text()
    assert text == modules_page.page(text), "run `python -m tests.modules_page`"


def test_the_table_of_buffers_is_generated():
    text = programs_page.PAGE.read_text()
    assert text == programs_page.page(text), "run `python -m tests.programs_page`"


def test_a_module_of_each_depth_stands_on_its_page():
    text = modules_page.PAGE.read_text()
    for name in ("serve.http.app", "engine.engine", "kernels.matmul", "errors"):
        assert text.count(f"| `{name}` |") == 1
    assert "kernels.matmul.cpu" not in text


def test_the_way_of_a_token_passes_modules_that_exist():
    """Whatever stands in the drawing between its indentation and its explanation."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawing = text.partition("## The way of a token")[2].split("```")[1]
    layers = "serve|engine|generate|models|layers|kernels"
    named = re.findall(rf"\b((?:{layers})\.\w+)", drawing)
    assert len(named) > 15
    for name in named:
        path = ROOT / "fdjax" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_nothing_names_a_package_registry():
    """Pins are addresses of nothing: where packages come from is the machine's."""
    hosts = re.compile("pypi" r"\.org|python" r"hosted")
    for path in (ROOT / "constraints.txt", ROOT / "pyproject.toml", *PAGES):
        assert not hosts.search(path.read_text()), path


def test_constraints_pin_exact_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins and all(re.match(r"[a-z0-9-]+==[\w.]+( ;|$)", pin) for pin in pins)
