"""`fdjax doctor`: what it finds on a CPU, and what it says of machines that are not."""

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from fdjax.cli.doctor import caches, driver, extras
from fdjax.cli.doctor.caches import Kept
from fdjax.cli.doctor.driver import Card
from fdjax.cli.doctor.findings import Device, Findings, Operation
from fdjax.cli.doctor.remedy import OLDEST_DRIVER, next_step
from fdjax.cli.doctor.tables import show
from fdjax.errors import to_install
from fdjax.kernels.ffi import Extension
from tests.cli.conftest import Invoke

H200 = Card("NVIDIA H200", "9.0", 143771, f"{OLDEST_DRIVER}.65.06")
CPU = Device("cpu", "cpu", 1, None, 2**34)
GPU = Device("gpu", "NVIDIA H200", 8, (9, 0), 2**37)
CPU_BUILD = Extension(None, {"cpu": ("add_norm",)}, (), "0.11.2")
BUILD = Extension(
    None, {"cpu": ("add_norm",), "gpu": ("draw",)}, ("80-real", "90a-real"), "0.11.2"
)
# A machine on which all is well.
WELL = Findings(
    versions={"fdjax": "0.1.0"},
    cards=[H200],
    no_cards=None,
    device=GPU,
    device_problem=None,
    platforms_asked=None,
    extension=BUILD,
    model="tales-5m",
    operations=[Operation("draw", "cuda", {})],
    extras={"cuda13": [], "serve": []},
    kept=[],
)
UNSEEN = replace(WELL, device=CPU)


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Neither a driver nor caches of the machine's own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def smi(folder: pathlib.Path, script: str) -> None:
    """A driver that answers so."""
    file = folder / "bin" / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.cpu
def test_on_a_cpu(invoke: Invoke):
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    for text in (
        "none: no nvidia-smi on the path",
        "cpu (cpu)",
        "Operations of tales-5m",
        "prefill_attention",
        "decode_attention[pallas]",
        "needs a Hopper GPU",
        "serve",
        "compiled programs",
        'fdjax generate "Once upon a time"',
    ):
        assert text in result.stdout
    assert result.stdout.count("needs a Hopper GPU") == 1, "a reason is said once"


@pytest.mark.cpu
def test_as_json(invoke: Invoke):
    found = json.loads(invoke("doctor", "--json").stdout)
    names = {one["name"] for one in found["operations"]}
    assert {"decode_attention", "prefill_attention", "draw"} <= names
    assert found["device"]["platform"] == "cpu"
    assert found["next"]["broken"] is False


def test_an_answer_is_read_as_operations_write_it():
    line = "matmul: flat (a heuristic); not gemv: 8 rows; it takes 1; not cuda: old"
    wanted = {"gemv": "8 rows; it takes 1", "cuda": "old"}
    assert Operation.of(line) == Operation("matmul", "flat (a heuristic)", wanted)


def test_the_driver_is_asked(tmp_path: pathlib.Path):
    smi(tmp_path, "echo 'NVIDIA H200, 9.0, 143771, 580.65.06'")
    assert driver.cards() == ([replace(H200, driver="580.65.06")], None)
    assert H200.driver_major == OLDEST_DRIVER


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Failed to initialize NVML'; exit 18", "fails: Failed to initialize"),
        ("exit 3", "nvidia-smi fails: 3"),
        (":", "names no GPU"),
        ("echo nonsense", "names no GPU"),
    ],
)
def test_a_driver_that_does_not_answer(
    tmp_path: pathlib.Path, script: str, reason: str
):
    smi(tmp_path, script)
    cards, said = driver.cards()
    assert cards == []
    assert said is not None and reason in said


@pytest.mark.parametrize(
    ("findings", "step"),
    [
        (
            replace(UNSEEN, platforms_asked="cpu"),
            "because JAX_PLATFORMS is 'cpu': unset it",
        ),
        (
            replace(UNSEEN, extras={"cuda13": ["jax-cuda13-plugin"]}),
            to_install("cuda13"),
        ),
        (
            replace(UNSEEN, cards=[replace(H200, driver="550.54.15")]),
            f"the driver 550.54.15 of the NVIDIA H200 is older than CUDA 13 needs: "
            f"update it to {OLDEST_DRIVER}",
        ),
        (replace(UNSEEN, cards=[replace(H200, driver="?")]), "does not use the"),
        (UNSEEN, "does not use the NVIDIA H200 (it does not say why)"),
        (
            replace(WELL, cards=[], device=None, device_problem="no backend"),
            "JAX finds no device: no backend",
        ),
        (
            replace(WELL, extension=replace(BUILD, problem="it is not built")),
            "it is not built",
        ),
        (replace(WELL, extension=CPU_BUILD), "built without GPU handlers"),
        (
            replace(WELL, device=replace(GPU, capability=(10, 0))),
            "FDJAX_CUDA_ARCHITECTURES=100-real",
        ),
        (
            replace(WELL, kept=[Kept("programs", "/p", 0, 0, "others may write")]),
            "programs: others may write",
        ),
    ],
)
def test_what_is_broken_comes_first(
    findings: Findings, step: str, capsys: pytest.CaptureFixture[str]
):
    found = next_step(
        replace(findings, extras={"serve": ["uvicorn"]} | findings.extras)
    )
    assert found.broken
    assert step in found.text
    show(findings, found)
    assert "broken" in capsys.readouterr().out


def test_where_all_is_well():
    assert next_step(WELL).text == "serve a model: fdjax serve Qwen/Qwen3-8B"
    unserved = next_step(replace(WELL, extras={"serve": ["uvicorn"]}))
    assert not unserved.broken
    assert unserved.text == f"to serve (uvicorn), {to_install('serve')}"
    assert not next_step(replace(WELL, cards=[])).broken, "a GPU of another vendor"
    no_gpu = replace(WELL, cards=[], device=CPU, extension=CPU_BUILD)
    assert "fdjax generate" in next_step(no_gpu).text


@pytest.mark.cpu
def test_a_platform_that_is_not_there():
    """A process of its own: JAX starts its platforms once."""
    done = subprocess.run(
        [sys.executable, "-m", "fdjax", "doctor"],
        env=os.environ | {"JAX_PLATFORMS": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "unset JAX_PLATFORMS, which is 'cuda'" in " ".join(done.stdout.split())
    assert "serves everything" not in done.stdout, "nothing is served"
    assert "Operations of" not in done.stdout


def test_status_1_where_something_is_broken(
    invoke: Invoke, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    smi(tmp_path, "echo 'NVIDIA H200, 9.0, 143771, 580.65.06'")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "JAX_PLATFORMS is 'cpu': unset it" in " ".join(result.stdout.split())


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch):
    version = metadata.version

    def without(name: str) -> str:
        if name == "uvicorn":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "fastapi" else version(name)

    monkeypatch.setattr(metadata, "version", without)
    found = extras.missing()
    assert {"chat", "cuda13", "serve", "plots", "traces"} == {*found}
    assert found["serve"] == ["fastapi>=0.115 (it is 0.1)", "uvicorn"]
    assert found["plots"] == []


def test_extras_of_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", nothing)
    assert extras.missing() == {}


def test_programs_where_others_may_write(tmp_path: pathlib.Path):
    folder = tmp_path / "fdjax" / "programs"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    (programs, *_) = caches.kept(None)
    assert programs.problem is not None and "others may write there" in programs.problem
    folder.chmod(0o700)
    (folder / "one-cache").write_bytes(b"1234")
    (programs, *_) = caches.kept(None)
    assert programs == Kept("compiled programs", str(folder), 1, 4, None)
