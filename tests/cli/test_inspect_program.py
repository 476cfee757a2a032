"""`fdjax inspect --program`: a step's instructions from the configuration alone."""

import json
import pathlib
from typing import Any

import pytest

from fdjax.kernels.layer_program import table
from fdjax.kernels.layer_program.table import ChainRows
from tests.cli.conftest import Invoke

MODELS = pathlib.Path(__file__).parents[2] / "configs" / "models"


def program(invoke: Invoke, name: str, *options: str) -> dict[str, Any]:
    path = str(MODELS / f"{name}.json")
    fixed = ("--program", "--json", "--dtype", "bfloat16")
    result = invoke("inspect", path, *fixed, *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_llama_has_nine_instructions_a_layer_at_most(invoke: Invoke):
    found = program(invoke, "llama3-8b")
    assert found["buffer_columns"] == [4096, 4096, 14336]
    assert found["token_bytes"] == 45056
    titles = [section["title"] for section in found["sections"]]
    assert titles == ["Embedding", "Layers 0 to 30", "Layer 31", "Head"]
    layer = [
        (line["instruction"], line["reads"], line["writes"])
        for line in found["sections"][1]["lines"]
    ]
    assert layer == [
        ("norm", ["1"], ["2"]),
        ("linear", ["2"], ["3"]),
        ("rotate, attention", ["3"], ["2"]),
        ("linear, add", ["2", "1"], ["1"]),
        ("norm", ["1"], ["2"]),
        ("linear, silu gate", ["2"], ["3"]),
        ("linear, add", ["3", "1"], ["1"]),
    ]
    (qkv,) = (
        line
        for line in found["sections"][1]["lines"]
        if line["parameters"] == ["attention.qkv.weight"]
    )
    assert qkv["parameter_bytes"] == 2 * 6144 * 4096


def test_layers_of_a_kind_come_once(invoke: Invoke):
    found = program(invoke, "gemma2-9b")
    titles = [section["title"] for section in found["sections"]]
    assert titles[2:4] == ["Layers 1, 3, ... 39", "Layers 2, 4, ... 40"]
    said = [line["instruction"] for line in found["sections"][3]["lines"]]
    assert "rotate, attention, cap 50, window 4096" in said
    (mixed,) = (
        line["writes"]
        for line in found["sections"][3]["lines"]
        if "attention" in line["instruction"]
    )
    assert mixed == ["3 from 8192"]


def test_linear_maps_say_what_serves_them(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = program(invoke, "llama3-8b", "--device", "h200")
    served = {
        tuple(line["parameters"]): (line["decode"], line["prompts"])
        for section in found["sections"][:2]
        for line in section["lines"]
    }
    assert served["mlp.up.weight",] == ("flat", "library")
    assert served["embed.weight",] == ("", "")
    last = found["sections"][2]["lines"]  # it goes on with a token of each row
    assert {line["prompts"] for line in last if "mlp.up" in str(line)} == {"flat"}
    head = found["sections"][-1]["lines"][-1]  # a call of its own, in float32
    assert (head["decode"], head["prompts"]) == ("flat", "flat")
    assert found["decode"].startswith("cuda (GEMMs by ")
    assert found["prompts"].startswith("cuda (GEMMs by cuBLASLt")


@pytest.mark.parametrize("model", sorted(path.stem for path in MODELS.glob("*.json")))
def test_linear_maps_of_every_model_are_served_as_the_chain_chooses(
    model: str,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    _, *layers, _ = program(invoke, model, "--device", "h200")["sections"]
    linear = [
        [line for line in section["lines"] if line["instruction"].startswith("linear")]
        for section in layers
    ]
    assert all(linear)
    every = [line for lines in linear for line in lines]
    assert {line["decode"] for line in every} == {"flat"}
    *before, last = linear
    qkv, *wanted = last
    whole = [line["prompts"] for lines in before for line in lines] + [qkv["prompts"]]
    assert set(whole) <= {"library", "persistent"}
    assert {line["prompts"] for line in wanted} == {"flat"}


def test_another_table_of_the_chain_is_asked(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    rows = ChainRows(gemv_up_to=2, flat_up_to=4, gemm_up_to=8)
    monkeypatch.setattr(table.PART, "find", lambda: rows)
    found = program(invoke, "llama3-8b", "--device", "h200")
    layer = found["sections"][1]["lines"]
    words = [line["decode"] for line in layer if "linear" in line["instruction"]]
    assert words == ["gemm"] * 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--dtype", "float32"), "float32"),
        (("--page-size", "5000"), "page"),
    ],
)
def test_where_the_chain_refuses_operations_are_asked_and_the_reason_is_said(
    options: tuple[str, ...],
    reason: str,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    found = program(invoke, "llama3-8b", "--device", "h200", *options)
    assert found["decode"].startswith("layer by layer, by the modules; not cuda: ")
    assert reason in found["decode"]
    qkv = found["sections"][1]["lines"][1]
    by_itself = "reference" if "float32" in options else "flat"
    assert (qkv["decode"], qkv["prompts"]) == (by_itself, "reference")


def test_one_reason_is_shown_once(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: "no kernels here")
    result = invoke("inspect", "--program", "--device", "h200")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("no kernels here") == 1


def test_it_is_shown_as_tables(invoke: Invoke):
    result = invoke("inspect", "--program")
    assert result.exit_code == 0, result.stderr
    for said in ("activations", "bytes a token", "linear, silu gate", "Layers 0 to"):
        assert said in result.stdout


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--budget", "8"),
        ("--max-model-len", "8"),
        ("--max-num-seqs", "8"),
        ("--memory-fraction", "0.9"),
        ("--plot", "8"),
    ],
)
def test_options_that_mean_nothing_there_are_refused(
    invoke: Invoke, option: str, value: str
):
    result = invoke("inspect", "--program", option, value)
    assert result.exit_code != 0
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"has no {option}; leave one out" in said


def test_a_plan_is_no_program(invoke: Invoke):
    result = invoke("inspect", "--plan", "1x8", "--program")
    assert result.exit_code != 0
    assert "has no --program" in " ".join(result.stderr.split())
