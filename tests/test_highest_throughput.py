"""The highest throughput over batches: of the shipped model, and of engines made up."""

import contextlib
import json
import pathlib
import re
import sys
import types
from typing import Any

import pytest

from benchmarks import made_up, throughput_charts, throughput_engines
from benchmarks.cases import Case
from benchmarks.highest_throughput import main
from benchmarks.throughput_charts import batches, chart, highest
from benchmarks.throughput_engines import (
    ENGINES,
    BatchEngine,
    BatchSettings,
    OutOfMemoryError,
    start_transformers,
    start_vllm,
)

SIZES = "--models tales-5m --inputs 5,9 --batches 1,3 --output 4 --repeats 1"


def _row(
    engine: str, batch: int, rate: float | None, tokens: int = 8
) -> dict[str, Any]:
    own = {"engine": engine, "batch": batch, "tokens_per_s": rate}
    return {"model": "m", "input": tokens, "output": 4, **own}


def test_every_batch_is_measured_and_the_best_drawn(tmp_path: pathlib.Path):
    out, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    options = f"{SIZES} --memory-fraction 0.02 --out {out} --plot {plot}"
    main(options.split())
    rows = json.loads(out.read_text())
    assert [(row["input"], row["batch"]) for row in rows] == [
        (5, 1),
        (5, 3),
        (9, 1),
        (9, 3),
    ]
    assert all(row["tokens_per_s"] > 0 and row["put_back"] == 0 for row in rows)
    assert plot.read_text().count("tokens/s at") == 2


def test_another_engine_stands_beside(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Its rows replace its own; a batch that does not fit is the last of its length."""
    closed, asked = list[BatchSettings](), list[Case]()

    def start(settings: BatchSettings) -> BatchEngine:
        def seconds(case: Case) -> float:
            asked.append(case)
            if case.batch * case.context > 20:
                raise OutOfMemoryError("no room")
            return 0.5

        return BatchEngine(
            seconds, {"version": "1.0"}, close=lambda: closed.append(settings)
        )

    monkeypatch.setitem(ENGINES, "vllm", start)
    out, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    own = {**_row("fdjax", 1, 9.0, 5), "model": "tales-5m"}
    stale = {**_row("vllm", 3, 1.0, 5), "model": "tales-5m"}
    out.write_text(json.dumps([own, stale]))
    options = f"{SIZES} --engine vllm --out {out} --plot-batches {plot}"
    main([*options.split(), "--batches", "1,3,4"])
    rows = json.loads(out.read_text())
    found = [(row["engine"], row["input"], row["batch"]) for row in rows]
    assert found[0] == ("fdjax", 5, 1)
    assert found[1:] == [
        ("vllm", 5, 1),
        ("vllm", 5, 3),
        ("vllm", 5, 4),
        ("vllm", 9, 1),
        ("vllm", 9, 3),
    ]
    rates = [row["tokens_per_s"] for row in rows[1:]]
    assert rates == [8.0, 24.0, 32.0, 8.0, None]
    assert all(row["version"] == "1.0" and "put_back" not in row for row in rows[1:])
    assert len(asked) == 4 * 2 + 1, "a run before each, and none after the first error"
    assert [one.max_model_len for one in closed] == [13]
    assert plot.read_text().count("<polyline") == 3, "fdjax's, and two of the other"


def test_the_highest_of_each_engine_model_and_length():
    rates = [("b", 1, 2.0), ("fdjax", 1, 5.0), ("fdjax", 4, 9.0), ("fdjax", 8, 7.0)]
    rows = [_row(*one) for one in [*rates, ("transformers", 1, None)]]
    best = highest(rows)
    assert [(row["engine"], row["batch"]) for row in best] == [("fdjax", 4), ("b", 1)]
    drawn = chart(rows, "a device")
    assert "9 tokens/s at 4 rows" in drawn and "transformers" not in drawn


def test_lines_are_those_of_batches():
    rows = [_row("fdjax", n, 10.0 * n) for n in (4, 1, 2)] + [_row("vllm", 1, 5.0)]
    lines = re.findall(r'points="([^"]+)" class="line (\w)"', batches(rows, "device"))
    assert [(len(points.split()), kind) for points, kind in lines] == [
        (3, "a"),
        (1, "b"),
    ]
    heights = [float(point.split(",")[1]) for point in lines[0][0].split()]
    top = min(heights)
    bottom = top + throughput_charts._PLOT[3]
    assert heights == pytest.approx(
        [bottom - n / 4 * (bottom - top) for n in (1, 2, 4)]
    )


def test_models_made_for_less_get_more_positions(tmp_path: pathlib.Path):
    settings = BatchSettings("llama2-7b", 4224, 1, 0.9)
    assert settings.overrides == {"max_position_embeddings": 4224}
    assert BatchSettings("llama3-8b", 4224, 1, 0.9).overrides == {}
    folder = pathlib.Path(made_up.folder_of(settings.config, settings.overrides))
    config = json.loads((folder / "config.json").read_text())
    there = json.loads(settings.config.read_text())
    assert config == there | settings.overrides


# --- Other engines, as far as they can be without being installed ---------------------


class _Tensor:
    """What of torch's tensors is asked for."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape

    def cpu(self) -> "_Tensor":
        return self


def test_vllm_is_asked_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch):
    calls, closed = list[dict[str, Any]](), list[bool]()

    class FakeLLM:
        def __init__(self, **options: Any) -> None:
            calls.append(options)
            core = types.SimpleNamespace(shutdown=lambda: closed.append(True))
            model = types.SimpleNamespace(get_vocab_size=lambda: 50)
            self.llm_engine = types.SimpleNamespace(
                engine_core=core, model_config=model
            )

        def generate(self, prompts: list[Any], params: Any, use_tqdm: bool) -> Any:
            assert not use_tqdm and params["ignore_eos"]
            assert [len(one["prompt_token_ids"]) for one in prompts] == [6, 6]
            tokens = types.SimpleNamespace(token_ids=[0] * params["max_tokens"])
            return [types.SimpleNamespace(outputs=[tokens]) for _ in prompts]

    fake: Any = types.SimpleNamespace(LLM=FakeLLM, SamplingParams=dict, __version__="9")
    monkeypatch.setitem(sys.modules, "vllm", fake)
    engine = start_vllm(BatchSettings("llama3-8b", 64, 8, 0.5))
    assert engine.seconds(Case(2, 6, 3)) > 0
    assert engine.about == {"version": "9"} and engine.put_backs is None
    (given,) = calls
    assert (given["load_format"], given["max_num_seqs"]) == ("dummy", 8)
    assert not given["enable_prefix_caching"]
    engine.close()
    assert closed == [True]


def test_memory_that_torch_has_not_is_told(monkeypatch: pytest.MonkeyPatch):
    class NoMemoryError(Exception):
        pass

    emptied = list[bool]()

    class Model:
        config = types.SimpleNamespace(vocab_size=50)

        def generate(self, ids: _Tensor, **options: Any) -> _Tensor:
            if ids.shape[0] > 2:
                raise NoMemoryError("CUDA out of memory")
            return _Tensor((ids.shape[0], ids.shape[1] + options["max_new_tokens"]))

    fake: Any = types.ModuleType("torch")
    fake.as_tensor = lambda prompts, device: _Tensor(prompts.shape)
    fake.ones_like = lambda ids: ids
    fake.inference_mode = contextlib.nullcontext
    fake.OutOfMemoryError = NoMemoryError
    fake.cuda = types.SimpleNamespace(empty_cache=lambda: emptied.append(True))
    fake.__version__ = "2"
    peer: Any = types.ModuleType("transformers")
    peer.__version__ = "5"
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "transformers", peer)
    monkeypatch.setattr(
        throughput_engines, "transformers_model", lambda folder: (Model(), "cuda")
    )
    engine = start_transformers(BatchSettings("llama3-8b", 64, 8, 0.5))
    assert engine.about == {"version": "5, torch 2"}
    assert engine.seconds(Case(2, 6, 3)) > 0
    with pytest.raises(OutOfMemoryError, match="CUDA out of memory"):
        engine.seconds(Case(3, 6, 3))
    assert emptied == [True]
