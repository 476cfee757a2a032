"""`fdjax inspect`: a model from its configuration alone."""

import json
import logging
import pathlib
from typing import Any

import pytest
import typer

from fdjax.cli.sizes import parse_bytes
from fdjax.kernels.paged.calls import ALL_TOKENS
from fdjax.models.decoder_layer import DecoderLayer
from fdjax.models.program.lower import windows_of
from tests.cli.conftest import Invoke

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
ROOT = pathlib.Path(__file__).parents[2]
LLAMA = ROOT / "configs" / "models" / "llama3-8b.json"
H200 = ("--device", "h200", "--budget", "141GB")


@pytest.fixture
def report(invoke: Invoke) -> dict[str, Any]:
    result = invoke("inspect", str(LLAMA), *H200, "--max-num-seqs", "64", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_parameters_add_up(report: dict[str, Any]):
    rows = report["parameters"]
    assert report["num_parameters"] == 8_030_261_248
    assert sum(row["elements"] for row in rows) == report["num_parameters"]
    (qkv,) = (row for row in rows if row["path"] == "layers.*.attention.qkv.weight")
    assert (qkv["shape"], qkv["count"]) == ([6144, 4096], 32)
    assert qkv["num_bytes"] == 2 * 32 * 6144 * 4096


def test_memory_adds_up(report: dict[str, Any]):
    memory = report["memory"]
    parts = ("weight_bytes", "workspace_bytes", "kv_bytes", "unused_bytes")
    assert sum(memory[part] for part in parts) == memory["budget_bytes"] == 141 * 10**9
    assert memory["weight_bytes"] == 2 * report["num_parameters"]
    assert memory["page_bytes"] == 2 * 2**20
    assert memory["token_bytes"] == 2**17
    assert memory["num_tokens"] == 16 * memory["num_pages"]
    assert memory["max_num_seqs"] == 64


def test_the_plan_is_for_the_device_named(report: dict[str, Any]):
    assert report["device"] == "gpu (NVIDIA H200)"
    assert report["dtype"] == "bfloat16"
    assert not any("traced for cpu" in line for line in report["kernels"])


@pytest.mark.parametrize("budget", ["141GB", "10GB"])
def test_a_plan_for_another_device_does_not_warn_of_this_one(
    invoke: Invoke,
    budget: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """Operations are asked for shapes alone; the table says what would serve."""
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: "not built")
    monkeypatch.setattr("fdjax.kernels.reporting._warned", set[tuple[str, str]]())
    with caplog.at_level(logging.WARNING):
        result = invoke("inspect", str(LLAMA), "--device", "h200", "--budget", budget)
    assert result.exit_code == (budget == "10GB")
    assert not caplog.records
    assert "token_places" in result.stdout and "not cuda: not built" in result.stdout


def test_every_operation_of_a_step_is_explained(invoke: Invoke):
    kernels = json.loads(invoke("inspect", "--json").stdout)["kernels"]
    names = {line.partition(": ")[0] for line in kernels}
    assert {"matmul", "add_norm", "rope_kv_write", "decode_attention"} <= names
    assert "prefill_attention" not in names
    assert len(set(kernels)) == len(kernels)


def test_every_kind_of_layer_is_explained(
    invoke: Invoke, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Qwen 2 slides in its last layers alone."""
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)  # GPU's too
    monkeypatch.setattr(
        "fdjax.models.program.cuda.refuse_arguments",
        lambda call: f"windows are {windows_of(call.program)}",
    )
    config = {**json.loads((FIXTURES / "qwen2" / "config.json").read_text())}
    config |= {
        "num_hidden_layers": 6,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 4,
        "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = invoke("inspect", str(path), *H200, "--json")
    assert result.exit_code == 0, result.stderr
    kernels = json.loads(result.stdout)["kernels"]
    reason = f"not cuda: windows are ({ALL_TOKENS}, 8)"
    assert f"layer_program: layer by layer, by the modules; {reason}" in kernels


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (LLAMA, "layer_program: cuda (GEMMs by the tuned table"),
        (
            FIXTURES / "qwen3" / "config.json",
            "layer_program: layer by layer, by the modules; not cuda: a weight is [24, "
            "1024]; it takes",
        ),
    ],
    ids=["served", "not_served"],
)
def test_whether_a_step_is_one_call_is_explained(
    invoke: Invoke, path: pathlib.Path, told: str, monkeypatch: pytest.MonkeyPatch
):
    def called(layer: DecoderLayer, *given: Any) -> Any:
        layers.append(layer)
        return run(layer, *given)

    layers, run = list[DecoderLayer](), DecoderLayer.__call__
    monkeypatch.setattr(DecoderLayer, "__call__", called)
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    result = invoke("inspect", str(path), *H200, "--json")
    assert result.exit_code == 0, result.stderr
    kernels = json.loads(result.stdout)["kernels"]
    assert any(line.startswith(told) for line in kernels), kernels
    assert bool(layers) == ("layer by layer, by the modules" in told)
    operations = {line.partition(":")[0] for line in kernels}
    alone = operations == {"layer_program", "matmul", "token_places"}
    assert alone == (path == LLAMA), "operations of layers are there without it alone"


def test_the_arena_is_told_and_drawn_as_the_page_on_serving_says(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    """Weights, arena and largest step, with the GPU handlers that plan for it."""
    monkeypatch.setattr("fdjax.kernels.ffi.refuse", lambda *_, **__: None)
    sizes = ("--device", "h200", "--budget", "127GB", "--max-model-len", "8192")
    result = invoke("inspect", str(LLAMA), *sizes, "--dtype", "bfloat16")
    assert result.exit_code == 0, result.stderr
    words = " ".join(result.stdout.split())
    for part in (
        "weights 14.96 GiB",
        "workspace 0.72 GiB",
        "KV cache 102.60 GiB: 840,464 tokens",
        "largest step 0.23 GiB: the last 118 pages, while it runs",
        "█░",
        "░▒▓",
    ):
        assert part in words
    page = " ".join((ROOT / "docs" / "serving.md").read_text().split())
    assert "the weights take 14.96 GiB and the workspace 0.72 GiB" in page
    assert "leaves 102.60 GiB, or 840,464 tokens" in page


def test_the_model_in_numbers(report: dict[str, Any]):
    model = report["model"]
    assert (model["family"], model["num_layers"]) == ("llama", 32)
    assert model["softmax"] == "synchronised"
    assert (model["num_heads"], model["num_kv_heads"], model["head_dim"]) == (
        32,
        8,
        128,
    )


def test_tables_for_people(invoke: Invoke):
    result = invoke("inspect")
    assert result.exit_code == 0
    for text in (
        "tales-5m",
        "5,475,584",
        "20.9 MiB",
        "98,304 bytes",
        "of a decode step",
        "unified maximum 2.28125",
    ):
        assert text in result.stdout
    assert "layers.*.mlp.down.weight" in result.stdout, "nothing is cut off"


@pytest.mark.parametrize("path", sorted(LLAMA.parent.iterdir()), ids=lambda p: p.stem)
def test_every_published_model_can_be_inspected(invoke: Invoke, path: pathlib.Path):
    sizes = ("--device", "h200", "--budget", "1TB", "--max-model-len", "1024", "--json")
    result = invoke("inspect", str(path), *sizes)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["memory"]["unused_bytes"] >= 0


def test_only_the_configuration_is_fetched(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    wanted: list[object] = []

    def download(_: str, **options: Any) -> str:
        wanted.append(options["allow_patterns"])
        return str(pathlib.Path(__file__).parents[1] / "fixtures" / "llama")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert invoke("inspect", "org/model").exit_code == 0
    assert wanted == [["config.json"]]


def test_a_budget_too_small_is_shown_with_what_would_do(invoke: Invoke):
    result = invoke("inspect", "--budget", "10MB")
    assert result.exit_code == 1
    assert "or raise --budget, or take bfloat16" in result.stderr
    assert result.stderr.startswith("error: the model does not fit: weights take 20.9")
    assert "of the" in result.stdout and "what would fit" in result.stdout
    assert "--dtype" not in result.stdout, "weights of 16 bits do not fit either"


def test_a_share_too_small_is_told_as_such(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fdjax.device.memory_budget", lambda _: 10**7)
    result = invoke("inspect", "--memory-fraction", "0.01")
    assert result.exit_code == 1
    assert "or raise --memory-fraction, or take bfloat16" in result.stderr


@pytest.mark.parametrize("option", ["--memory-fraction", "--gpu-memory-utilization"])
def test_a_budget_is_no_share(invoke: Invoke, option: str):
    result = invoke("inspect", "--budget", "1GB", option, "0.9")
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "--budget is used whole, and has no --memory-fraction; leave one out" in said


def test_what_would_fit_fits(invoke: Invoke):
    """Each remedy, taken alone."""
    sizes = (str(LLAMA), "--device", "h200")
    # Without CUDA kernels the workspace is larger: the last one is for builds with.
    for budget in ("19800MB", "18600MB", "17800MB", "17600MB"):
        short = ("--budget", budget, "--dtype", "bfloat16")
        result = invoke("inspect", *sizes, *short, "--json")
        if result.exit_code:
            break
    memory = json.loads(result.stdout)["memory"]
    assert result.exit_code == 1
    assert memory["missing_bytes"] > 0
    *smaller, budget = memory["would_fit"]
    assert smaller and budget.startswith("a budget of ")
    needed = memory["budget_bytes"] + memory["missing_bytes"]
    for remedy in smaller:
        assert invoke("inspect", *sizes, *short, *remedy.split()).exit_code == 0
    enough = ("--dtype", "bfloat16", "--budget")
    assert invoke("inspect", *sizes, *enough, str(needed)).exit_code == 0
    assert invoke("inspect", *sizes, *enough, str(needed - 1)).exit_code == 1


def test_narrower_weights_may_fit(invoke: Invoke):
    sizes = (str(LLAMA), "--device", "h200", "--budget", "30GB", "--json")
    wide = invoke("inspect", *sizes, "--dtype", "float32")
    assert "--dtype bfloat16" in json.loads(wide.stdout)["memory"]["would_fit"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--budget", "lots"],
        ["--device", "h200"],
        ["--device", "tpu"],
        ["--page-size", "0"],
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: list[str]):
    assert invoke("inspect", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("141GB", 141 * 10**9),
        ("80GiB", 80 * 2**30),
        ("1.5 tb", 1_500_000_000_000),
        ("512MiB", 2**29),
        ("1000", 1000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, num_bytes: int):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1XB", "1e9", "nan"])
def test_no_sizes(text: str):
    with pytest.raises(typer.BadParameter, match="write it like 141GB"):
        parse_bytes(text)
