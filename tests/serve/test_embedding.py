"""`LLM.embed` and `LLM.score`: vectors of texts, held to the definition."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import LLM, ConfigError, PoolingParams, RequestError, SamplingParams
from fdjax.layers import prefill_batch
from fdjax.models import load
from tests.support.hf_model import FIXTURES
from tests.support.numerics import assert_close

TEXTS = ["Once upon a time", "The king said", "There was once a fox", "A"]
MEAN = PoolingParams(pooling="mean")


@pytest.fixture(scope="module")
def plain(llm: LLM) -> list[np.ndarray]:
    """All hidden states `[S, E]` of each text, by the model alone."""
    model = load(llm.folder, dtype=jnp.float32)
    found: list[np.ndarray] = []
    for text in TEXTS:
        tokens = llm.get_tokenizer().encode(text)
        layout = model.config.kv_layout(num_pages=2, page_size=16, dtype=jnp.float32)
        batch = prefill_batch(
            jnp.asarray([tokens], jnp.int32),
            jnp.asarray([len(tokens)], jnp.int32),
            jnp.asarray([[0, 1]], jnp.int32),
            page_size=16,
        )
        found.append(np.asarray(model(layout.allocate(), batch)[0], np.float64))
    return found


def unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def check(vector: list[float], wanted: np.ndarray) -> None:
    assert_close(jnp.asarray(vector, jnp.float32), wanted, reduction=len(wanted))


def test_the_last_token_s_state_by_default(llm: LLM, plain: list[np.ndarray]):
    outputs = llm.embed(TEXTS)
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert [output.prompt for output in outputs] == TEXTS
    for output, states in zip(outputs, plain, strict=True):
        assert output.finished and len(output.prompt_token_ids) == len(states)
        check(output.outputs.embedding, unit(states[-1]))


def test_the_mean_of_all_states(llm: LLM, plain: list[np.ndarray]):
    as_it_is = PoolingParams(pooling="mean", normalize=False)
    short = PoolingParams(pooling="mean", dimensions=7)
    outputs = llm.embed(TEXTS, [MEAN, as_it_is, short, MEAN], use_tqdm=False)
    means = [states.mean(0) for states in plain]
    for output, wanted in zip(
        outputs,
        [unit(means[0]), means[1].astype(np.float32), unit(means[2][:7]), None],
        strict=True,
    ):
        if wanted is not None:
            check(output.outputs.embedding, wanted)


def test_prompts_of_every_sort(llm: LLM):
    tokens = llm.get_tokenizer().encode(TEXTS[0])
    (text,) = llm.embed(TEXTS[0], progress=True)
    same_text: list[Any] = [tokens, {"prompt": TEXTS[0]}, {"prompt_token_ids": tokens}]
    for prompt in same_text:
        (same,) = llm.embed(prompt)
        check(same.outputs.embedding, np.asarray(text.outputs.embedding, np.float32))
    assert llm.embed([]) == []


def test_scores_are_cosines(llm: LLM, plain: list[np.ndarray]):
    units = [unit(states[-1]) for states in plain]
    one_to_many = llm.score(TEXTS[0], TEXTS)
    assert [output.index for output in one_to_many] == [0, 1, 2, 3]
    for output, other in zip(one_to_many, units, strict=True):
        assert output.outputs.score == pytest.approx(float(units[0] @ other), abs=1e-4)
    assert one_to_many[0].outputs.score == pytest.approx(1.0, abs=1e-5)
    pairs = llm.score(TEXTS[:2], TEXTS[2:], pooling_params=MEAN)
    means = [unit(states.mean(0)) for states in plain]
    for place, output in enumerate(pairs):
        wanted = float(means[place] @ means[2 + place])
        assert output.outputs.score == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (["fine", []], None, "prompt 1 is empty"),
        ("word " * 200, None, "but max_model_len is 128; shorten"),
        ("A", [MEAN, MEAN], "1 prompts but 2 pooling_params"),
        ("A", PoolingParams(dimensions=10**6), "dimensions is 1000000, but the model"),
        ({"text": "A"}, None, "prompt 0 is a mapping"),
    ],
)
def test_what_cannot_be_served(llm: LLM, prompts: Any, params: Any, message: str):
    with pytest.raises(RequestError, match=message):
        llm.embed(prompts, params)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'; use 'last' or 'mean'"),
        ({"normalize": 1}, "normalize is 1; use True or False"),
        ({"dimensions": 0}, "dimensions is 0; use an integer from 1"),
        ({"dimensions": 2.0}, "dimensions is 2.0"),
    ],
)
def test_wrong_parameters(given: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        PoolingParams(**given)


def test_sides_that_do_not_match(llm: LLM):
    with pytest.raises(RequestError, match="data_1 has 2 texts and data_2 3"):
        llm.score(TEXTS[:2], TEXTS[:3])


def test_embedding_beside_tokens(llm: LLM):
    """Vectors are made while others are told, and change none of their tokens."""
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    alone = llm.generate(TEXTS[1], greedy)[0].token_ids
    tokens: list[int] = []
    for chunk in llm.stream(TEXTS[1], greedy):
        tokens += chunk.token_ids
        assert len(llm.embed(TEXTS[0])) == 1
    assert tokens == alone


def test_failures_are_told():
    llm = LLM(
        FIXTURES / "llama",
        max_model_len=16,
        max_num_seqs=2,
        hf_overrides={"rms_norm_eps": 1e-5},
    )
    embedding = llm.loaded.engine.executor.programs
    weights = embedding._weights
    embedding._weights = tuple(one * jnp.nan for one in weights)
    (output,) = llm.embed([[1, 2, 3]])
    assert output.failure is not None
    assert output.failure.code == "non_finite_logits"
    assert output.outputs.embedding == []
    (score,) = llm.score([[1, 2]], [[3, 4]])
    assert math.isnan(score.outputs.score)


def test_the_last_token_alone_where_bits_are_promised():
    llm = LLM(max_model_len=32, max_num_seqs=1, batch_invariant=True)
    with pytest.raises(RequestError, match="pooling is 'mean'"):
        llm.embed("A", MEAN)
    alone = llm.embed(TEXTS)
    again = [llm.embed(text)[0] for text in reversed(TEXTS)]
    assert [one.outputs for one in alone] == [one.outputs for one in reversed(again)]


def test_words_of_vllm_for_it():
    words: dict[str, Any] = {"runner": "pooling", "convert": "embed", "task": "embed"}
    with pytest.raises(ConfigError, match=r"give PoolingParams\(pooling="):
        LLM(**words, pooler_config={"seq_pooling_type": "MEAN"})
