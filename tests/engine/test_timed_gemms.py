"""GEMMs that XLA times while it compiles: which calls are asked, and what it takes."""

import pathlib
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import PoolingParams, device
from fdjax.engine import timed_gemms, workspace
from fdjax.engine.policy import StepPolicy
from fdjax.engine.runs import Runs
from fdjax.engine.timed_gemms import tunes_gemms, tuning_bytes
from fdjax.engine.workspace import workspace_bytes
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.kernels.matmul import Matmul
from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.table import Worth
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.models.program import LayerProgram
from fdjax.serve.setup import Settings
from tests.support import h200
from tests.support.engines import shallow_model, tiny_engine

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
ROWS, TOKENS = 4, 300


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    h200.pretend(monkeypatch, tmp_path)


def shipped(name: str) -> tuple[ModelConfig, KVLayout]:
    """A model that fdjax has the configuration of, and its KV array."""
    settings = Settings.of(
        CONFIGS / f"{name}.json", dtype="bfloat16", max_num_seqs=1, max_model_len=1024
    )
    return settings.config, settings.widest_layout


class Calls:
    """Notes the calls of an operation that it is asked about, which all are served.

    Attributes:
        tokens: of the calls of layers, by what their batches have.
        heads: rows of GEMMs that make logits.
    """

    def __init__(self) -> None:
        self.tokens: defaultdict[Any, set[int]] = defaultdict(set)
        self.heads: set[int] = set()

    def fast(self, call: LayerProgram | Matmul) -> bool:
        if isinstance(call, Matmul):
            self.heads.add(call.x.shape[0])
        else:
            kind = jax.tree.structure(call.batch)
            self.tokens[kind].add(call.num_tokens)
        return True


def made(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """By an engine that does all there is to do."""
    found, logits = Calls(), Decoder.logits

    def noted(call: LayerProgram) -> None:
        found.fast(call)

    def noted_logits(self: Decoder, hidden: jax.Array) -> jax.Array:
        found.heads.add(hidden.shape[0])
        return logits(self, hidden)

    monkeypatch.setattr(LAYER_PROGRAM, "if_fast", noted)
    monkeypatch.setattr(Decoder, "logits", noted_logits)
    options: dict[str, Any] = {"max_num_seqs": ROWS, "max_batched_tokens": TOKENS}
    options["policy"] = StepPolicy(shared_reads=True)
    # Few rows of few tokens are worth to be read once, so that there are programs.
    monkeypatch.setattr(table.PART, "find", lambda: Worth(of_group=1, of_batch=1))
    each = tiny_engine(shallow_model(), page_size=8, **options)
    plain = SamplingParams(temperature=0.0, prompt_logprobs=1)
    each.warm_up([plain, PoolingParams()])
    # Each beam reads its prompt, as so little would be saved; and all of them once.
    monkeypatch.setattr(table.PART, "find", lambda: Worth(prompt_bytes=0))
    once = tiny_engine(shallow_model(), page_size=8, **options)
    for engine in (each, once):
        for width in (1, 3):
            params = BeamSearchParams(beam_width=width, max_tokens=3)
            runs = Runs(engine)
            assert list(runs.follow(runs.add([engine.request(0, [5, 6], params)])))
    return found


def test_every_call_that_an_engine_makes_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    """Each kind with as many tokens at least, and each number of logits' rows."""
    calls, asked = made(monkeypatch), Calls()
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    for name in ("LAYER_PROGRAM", "MATMUL"):
        monkeypatch.setattr(timed_gemms, name, asked)
    config = shallow_model().config
    layout = config.kv_layout(num_pages=1, page_size=8, dtype=jnp.float32)
    sizes = {"num_tokens": TOKENS, "num_rows": ROWS, "width": 4}
    assert not tunes_gemms(config, layout, **sizes)
    assert len(calls.tokens) >= 6 and calls.tokens.keys() <= asked.tokens.keys()
    for kind, tokens in calls.tokens.items():
        assert min(asked.tokens[kind]) <= min(tokens)
        assert max(tokens) <= max(asked.tokens[kind])
    assert {1, ROWS, 64} <= calls.heads <= asked.heads


@pytest.mark.usefixtures("on_h200")
def test_a_head_of_scores_alone_is_timed(monkeypatch: pytest.MonkeyPatch):
    """The kernel for few rows takes 64, which is as many as are scored."""
    config, layout = shipped("gpt-j-6b")
    sizes = {"num_tokens": 8192, "num_rows": 16, "width": 64}
    assert not tunes_gemms(config, layout, **sizes)
    monkeypatch.setattr(timed_gemms, "SCORED_TOKENS", 65)
    assert tunes_gemms(config, layout, **sizes)


@pytest.mark.usefixtures("on_h200")
def test_nothing_is_set_aside_for_timing_where_nothing_is_timed():
    """What is the largest then is the scores of a prompt's tokens."""
    config, layout = shipped("llama3-8b")
    assert layout.lent
    assert not tunes_gemms(config, layout, num_tokens=8192, num_rows=1, width=64)
    assert tuning_bytes(config, layout, num_tokens=8192, num_rows=1, width=64) == 0
    sizes = {"num_tokens": 8192, "num_rows": 1, "max_model_len": 1024, "page_size": 16}
    scores = 3 * 64 * 128_256 * 4
    beside = workspace.state_bytes(config, num_rows=1) + workspace.SLACK_BYTES
    found = workspace_bytes(config, dtype=jnp.bfloat16, lent=True, **sizes)
    assert found == scores + beside


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize(("num_rows", "is_timed"), [(64, False), (256, True)])
def test_a_head_that_xla_multiplies_is_timed(num_rows: int, is_timed: bool):
    """The library adds no bias to float32, and the kernel for few rows takes 64."""
    config, layout = shipped("gpt-j-6b")
    sizes = {"num_tokens": 8192, "num_rows": num_rows, "width": 64}
    assert tunes_gemms(config, layout, **sizes) is is_timed
    head = (num_rows + 50_400) * 4096 * 2 + 2 * num_rows * 50_400 * 4
    tuning = tuning_bytes(config, layout, **sizes)
    assert tuning == (head if is_timed else 0), "the layers are one chain"


@pytest.mark.usefixtures("on_h200")
def test_gemms_of_layers_one_by_one_are_timed():
    config, layout = shipped("llama3-8b")
    with LAYER_PROGRAM.using("reference"):
        sizes = {"num_tokens": 8192, "num_rows": 1, "width": 64}
        assert tunes_gemms(config, layout, **sizes)
        up = (8192 + 28_672) * 4096 * 2 + 2 * 8192 * 28_672 * 2
        assert tuning_bytes(config, layout, **sizes) == up


@pytest.mark.usefixtures("on_h200")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda p: p.stem)
def test_searches_are_in_the_chain_wherever_all_else_is(path: pathlib.Path):
    """By prompts read once, or by each beam where positions matter to attention."""
    config, layout = shipped(path.stem)
    sizes = {"num_tokens": 8192, "num_rows": 16, "width": 64}
    assert layout.lent
    assert not tunes_gemms(config, layout, **sizes)
