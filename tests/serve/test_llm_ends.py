"""`LLM`: the end-of-sequence tokens of `generation_config.json` are the model's."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np
import pytest

from fdjax import LLM, SamplingParams, StructuredOutputs
from fdjax.models import SHIPPED, resolve
from fdjax.serve.generation_config import recommended_sampling
from fdjax.serve.http.wiring import application

STORY = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def whole(llm: LLM) -> list[int]:
    """What the model says where nothing but its own end ends it."""
    return llm.generate(STORY, GREEDY)[0].token_ids


@pytest.fixture(scope="module")
def ending(whole: list[int], tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The same model, whose generation_config.json names its fourth token as an end."""
    folder = tmp_path_factory.mktemp("ends") / "model"
    shutil.copytree(resolve(SHIPPED), folder)
    fields = {"eos_token_id": [1, whole[3]], "temperature": 0.0}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return LLM(folder, max_model_len=64, max_num_seqs=2)


def places(whole: list[int]) -> list[int]:
    """Where the end stands."""
    return [place for place, token in enumerate(whole) if token == whole[3]]


def test_they_end_a_text(ending: LLM, whole: list[int]):
    (output,) = ending.generate(STORY, GREEDY)
    assert places(whole)[0] == 3
    assert (output.token_ids, output.finish_reason) == (whole[:4], "stop")
    assert ending.tokenizer is not None
    assert output.text == ending.tokenizer.decode(whole[:4])


def test_tokens_of_the_request_end_it_besides(ending: LLM, whole: list[int]):
    for stop, length in ((whole[1], 2), (4000, 4)):
        params = dataclasses.replace(GREEDY, stop_token_ids=[stop])
        (output,) = ending.generate(STORY, params)
        assert (output.token_ids, output.finish_reason) == (whole[:length], "stop")


def test_they_are_ignored_like_any_end(ending: LLM, whole: list[int]):
    params = dataclasses.replace(GREEDY, ignore_eos=True, logprobs=0)
    (output,) = ending.generate(STORY, params)
    assert (output.token_ids, output.finish_reason) == (whole, "length")
    assert output.logprobs is not None
    assert len(output.logprobs) == len(whole)


def test_they_come_after_min_tokens(ending: LLM, whole: list[int]):
    params = dataclasses.replace(GREEDY, min_tokens=6)
    (output,) = ending.generate(STORY, params)
    assert output.token_ids[:3] == whole[:3]
    assert whole[3] not in output.token_ids[:6]
    assert len(output.token_ids) >= 6


def test_grammars_know_them(ending: LLM, whole: list[int]):
    form = StructuredOutputs(regex="(x)*")
    params = dataclasses.replace(GREEDY, structured_outputs=form)
    assert allowed(ending, params) >= {1, whole[3]}
    ignoring = dataclasses.replace(params, ignore_eos=True)
    assert not allowed(ending, ignoring) & {1, whole[3]}


def allowed(llm: LLM, params: SamplingParams) -> set[int]:
    """Tokens that may begin a text."""
    grammar = llm.grammars.compile(params)
    assert grammar is not None
    mask = grammar.matcher().mask()
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.anyio
async def test_the_server_treats_them_alike(ending: LLM, whole: list[int]):
    stops = dict[str, Any](stop_token_ids=[4000])
    assert await served(ending, {}) == (4, "stop")
    assert await served(ending, stops) == (4, "stop")
    assert await served(ending, {"ignore_eos": True}) == (12, "length")
    assert await served(ending, stops | {"ignore_eos": True}) == (12, "length")


async def served(llm: LLM, fields: Mapping[str, Any]) -> tuple[int, str]:
    """How many tokens `fdjax serve` makes of the story, and why it ends."""
    sampling = recommended_sampling(llm.folder)
    app, running = application(llm.loaded, names=["tales"], sampling=sampling)
    transport = httpx2.ASGITransport(app)
    body = {"prompt": STORY, "max_tokens": 12, **fields}
    async with httpx2.AsyncClient(transport=transport, base_url="http://t") as client:
        answer = (await client.post("/v1/completions", json=body)).json()
    running.close()
    return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]
