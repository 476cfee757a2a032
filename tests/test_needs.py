"""Benchmarks that cannot run here say so at once, in one sentence."""

import importlib
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from benchmarks import client_times, needs
from fdjax import device
from tests.support.hf_model import FIXTURES

ROOT = pathlib.Path(__file__).parents[1]
TRACE = str(ROOT / "benchmarks" / "data" / "azure_conv_2023_500.csv")


@pytest.fixture(autouse=True)
def no_gpu() -> None:
    if device.platform() != "cpu":
        pytest.skip("what is told is told on a CPU")


def run(monkeypatch: pytest.MonkeyPatch, command: str) -> str:
    """What a program ends with."""
    name, *arguments = command.split()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert isinstance(ended.value.code, str), ended.value
    assert "\n" not in ended.value.code
    return ended.value.code


@pytest.mark.parametrize(
    "command",
    [
        "ablation",
        "attention_invariance",
        "beams fig6",
        "breakdown",
        "decode_in_turns . --commit x",
        f"gaps {TRACE}",
        "kernels attention",
        "kernels decode_attention",
        "kernels draw",
        "kernels matmul",
        "kernels page_move",
        "timeline",
    ],
)
def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, command: str):
    expected = "this benchmark needs a GPU, and JAX found a CPU alone (cpu); `fdjax "
    assert run(monkeypatch, command) == expected + "doctor` says why"


def test_what_has_a_way_for_a_cpu_names_it(monkeypatch: pytest.MonkeyPatch):
    told = run(monkeypatch, "ragged_attention")
    assert told.endswith("(cpu); `--cases 2x64 --calls 2` shows that all runs")


@pytest.mark.parametrize(
    "command",
    [
        "beams steps",
        f"budgets {TRACE}",
        "decode",
        "highest_throughput --models llama3-8b",
        "memory --case llama3-8b-room",
        "memory_prefill",
        "memory_rows",
        "serving",
        f"serving_online {TRACE}",
        "shared_steps",
        "start",
        f"trace_decode {TRACE}",
    ],
)
def test_a_large_model_needs_one(monkeypatch: pytest.MonkeyPatch, command: str):
    told = run(monkeypatch, command)
    assert "needs a GPU for configs/models/llama3-8b.json (29.92 GiB of weig" in told
    assert "JAX found a CPU alone (cpu); ask for a small model, as tales-5m" in told


def test_a_small_model_needs_none():
    needs.gpu_for("tales-5m")
    needs.gpu_for(FIXTURES / "llama")


def test_with_a_gpu_all_may_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    needs.gpu()
    needs.gpu_for("configs/models/llama3-8b.json")


def test_a_platform_that_is_not_there_is_no_traceback():
    asked = "from benchmarks import needs; needs.gpu(apart=False)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "tpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "needs a GPU, and JAX found no device: Unable to init" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "package", "how"),
    [
        ("beams steps --peer transformers", "torch", "--group parity"),
        ("beams steps --peer vllm", "vllm", "docs/performance.md"),
        ("client_times", "aiperf", "tests/clients/aiperf.txt"),
        ("decode --model tales-5m --beside-transformers", "torch", "CONTRIBUTING.md"),
        ("highest_throughput --engine transformers", "torch", "constraints.txt"),
        ("highest_throughput --engine vllm", "vllm", "docs/performance.md"),
        (
            f"serving_online {TRACE} --skip 0 --engine vllm",
            "vllm",
            "docs/performance.md",
        ),
        ("sgl_jax", "sgl_jax", "tests/stacks/sgl-jax.txt"),
        (f"trace_decode {TRACE} --engine vllm", "vllm", "docs/performance.md"),
        ("tunix_rollouts", "tunix", "tests/stacks/tunix.txt"),
    ],
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    command: str,
    package: str,
    how: str,
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(client_times, "PROGRAM", tmp_path / "aiperf")
    told = run(monkeypatch, command)
    assert told.startswith(f"this benchmark needs {package}, which is not installed h")
    assert how in told


def test_what_is_told_to_be_read_is_there():
    for told in needs.INSTALLED_BY.values():
        for word in told.replace("`", " ").replace(",", " ").split():
            if word.startswith(("docs/", "tests/", "constraints", "CONTRIB")):
                assert (ROOT / word).exists(), word
