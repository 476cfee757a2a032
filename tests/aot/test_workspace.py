"""What a plan counts beside the KV array, and what XLA takes for an H200."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax import device
from fdjax.engine.beam_tables import BeamTables
from fdjax.engine.buckets import PREFILL_ROWS, SCORED_TOKENS, Buckets
from fdjax.engine.workspace import pooled_bytes, sampling_bytes, scoring_bytes
from fdjax.generate.beam_loop import beam_steps, begin_beams, begin_judged, judged_step
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_run import Judgement
from fdjax.generate.beam_state import BeamState, init_beams
from fdjax.generate.fields import MAX_BIASED
from fdjax.generate.masks import num_words
from fdjax.generate.plan import plan_of
from fdjax.generate.pooled_states import pool_tokens
from fdjax.generate.prompt_scores import score_tokens
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
MODELS = ("llama3-8b", "gpt-j-6b", "gemma2-9b")
PAGE_SIZE, WIDTH = 16, 512
DTYPE = jnp.bfloat16
# Ids, places and what is added up by prompt, and what goes to the host.
SMALL = 4 * 2**20
ROWS = 256
# Of one search, everything that takes memory; its prompt has 1,024 tokens.
EVERYTHING: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "logprobs": 20,
    "logit_bias": dict.fromkeys(range(MAX_BIASED), 1.0),
    "bad_words": [[3, 4]],
    "allowed_token_ids": [1, 2, 3],
    "min_tokens": 2,
    "stop_token_ids": [7, 8],
    "max_tokens": 64,
}
PROMPT_PAGES, OWN_PAGES = 64, 4


@dataclasses.dataclass(frozen=True)
class Searches:
    """That are alike, of some groups of so many beams."""

    count: int
    groups: int
    width: int
    judged: bool = False


# As many beams as there are rows, and groups whose padding would be half as many more.
SEARCHES = [
    Searches(1, 1, 256),
    Searches(8, 1, 32),
    Searches(1, 3, 65),
    Searches(1, 1, 256, judged=True),
]


def _config(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _beside(
    function: Callable[..., Any],
    config: ModelConfig,
    *operands: Any,
    donated: tuple[int, ...] = (1,),
) -> int:
    """Bytes that a program over a lent KV array has beside its operands."""
    layout = config.kv_layout(num_pages=5120, page_size=PAGE_SIZE, dtype=DTYPE)
    kv = jax.eval_shape(dataclasses.replace(layout, lent=True).allocate)
    model = Decoder(config, DTYPE)
    compiled = compile_for_h200(function, model, kv, *operands, donate_argnums=donated)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= layout.nbytes
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + results


@pytest.mark.parametrize("num_tokens", [8192, 32_768])
@pytest.mark.parametrize("name", MODELS)
def test_pooling_takes_the_states_once(name: str, num_tokens: int):
    """In 16 bits: what adds them up in float32 keeps no array of it."""
    config, prompts = _config(name), _ints(PREFILL_ROWS)
    table = _ints(PREFILL_ROWS, WIDTH)
    beside = _beside(pool_tokens, config, _ints(num_tokens), prompts, table, prompts)
    counted = pooled_bytes(config, dtype=DTYPE, num_tokens=num_tokens)
    assert counted <= beside <= counted + SMALL


@pytest.mark.parametrize("name", MODELS)
def test_scoring_takes_no_more_than_is_counted(name: str):
    config, tokens, one = _config(name), _ints(SCORED_TOKENS), _ints(1)
    operands = tokens, tokens, one, _ints(1, WIDTH), one
    assert _beside(score_tokens, config, *operands) <= scoring_bytes(config) + SMALL


@pytest.mark.parametrize("asked", SEARCHES, ids=str)
def test_searches_take_no_more_than_sampling(
    asked: Searches, monkeypatch: pytest.MonkeyPatch
):
    """Of so many rows as there are: padding never adds to those."""
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    config = _config("llama3-8b")
    counted = sampling_bytes(config, num_rows=ROWS)
    step, *operands = _step(asked, config)
    assert _beside(step, config, *operands, donated=(1, 3)) <= counted + SMALL


def test_first_tokens_of_a_search_take_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    config = _config("llama3-8b")
    begin, *operands = _begin(Searches(1, 1, ROWS, judged=True), config)
    memory = compile_for_h200(begin, *operands).memory_analysis()
    assert memory is not None
    taken = memory.temp_size_in_bytes + memory.output_size_in_bytes
    # What a search keeps is a result here: bits of the vocabulary for each beam.
    assert taken <= sampling_bytes(config, num_rows=ROWS) + 2 * SMALL


def _buckets() -> Buckets:
    return Buckets.of(
        max_num_seqs=ROWS,
        max_model_len=WIDTH * PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_batched_tokens=8192,
    )


def _begin(asked: Searches, config: ModelConfig) -> tuple[Any, ...]:
    """What chooses first tokens, and its operands."""
    vocab_size = config.embedding.vocab_size
    state: BeamState = jax.eval_shape(functools.partial(_state, asked, vocab_size))
    logits = jax.ShapeDtypeStruct((1, vocab_size), jnp.float32)
    operands = logits, _ints(asked.groups), state.rules, state.progress
    if not asked.judged:
        return begin_beams, *operands
    allowed = jax.ShapeDtypeStruct((1, num_words(vocab_size)), jnp.uint32)
    return begin_judged, *operands, allowed


def _state(asked: Searches, vocab_size: int) -> BeamState:
    params = BeamSearchParams(
        beam_width=asked.groups * asked.width,
        num_beam_groups=asked.groups,
        diversity_penalty=0.5 if asked.groups > 1 else 0.0,
        **EVERYTHING,
    )
    return init_beams(
        [params] * asked.groups,
        [(1, 2, 3)] * asked.groups,
        width=_buckets().group_rows(asked.groups, asked.width),
        limit=OWN_PAGES * PAGE_SIZE,
        vocab_size=vocab_size,
        eos_token_ids=(1,),
        plan=plan_of([params.sampling]),
    )


def _step(asked: Searches, config: ModelConfig) -> tuple[Any, ...]:
    """What chooses later ones, and its operands behind model and KV array."""
    begin, *operands = _begin(asked, config)
    rules, run, _ = jax.eval_shape(begin, *operands)
    layout = config.kv_layout(num_pages=1, page_size=PAGE_SIZE, dtype=DTYPE)
    groups, width = run.shapes.tokens.shape
    pages = BeamTables(config, layout, _buckets()).shapes(
        asked.count * groups, width, PROMPT_PAGES, OWN_PAGES
    )
    if not asked.judged:
        return beam_steps, (rules,) * asked.count, (run,) * asked.count, pages
    candidates = run.shapes.candidates.sums.shape
    words = groups, width, num_words(config.embedding.vocab_size)
    judgement = jax.eval_shape(
        Judgement,
        jax.ShapeDtypeStruct(candidates, jnp.bool_),
        jax.ShapeDtypeStruct(words, jnp.uint32),
    )
    return judged_step, rules, run, pages, judgement
