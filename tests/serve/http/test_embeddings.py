"""`/v1/embeddings`: by OpenAI's client, and what is refused."""

import asyncio
import base64
import json
import pathlib
from typing import Any

import numpy as np
import openai
import pytest

from fdjax import LLM
from fdjax.engine.request import Increment
from fdjax.generate.stopping import FinishReason
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.limits import Limits
from fdjax.serve.http.wiring import application
from tests.support.fake_engine import HIDDEN_SIZE, FakeEngine, FakeSequence
from tests.support.http_server import TOKENIZER, listening, served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PATH = "/v1/embeddings"
TEXTS = ["Once upon a time", "The king said"]


def vector(text: str) -> list[float]:
    """What the fake engine makes of a text."""
    tokens = TOKENIZER.encode(text)
    return [float(tokens[0])] + [float(len(tokens))] * (HIDDEN_SIZE - 1)


async def test_openais_client_by_default_and_in_numbers():
    with served() as server, listening(server.app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            one = await client.embeddings.create(model="tales", input=TEXTS[0])
            many = await client.embeddings.create(
                model="tales", input=TEXTS, encoding_format="float", dimensions=3
            )
    assert one.object == "list" and one.model == "tales"
    assert one.data[0].embedding == vector(TEXTS[0])
    assert [entry.index for entry in many.data] == [0, 1]
    assert [entry.embedding for entry in many.data] == [vector(t)[:3] for t in TEXTS]
    count = sum(len(TOKENIZER.encode(text)) for text in TEXTS)
    assert many.usage.prompt_tokens == many.usage.total_tokens == count


async def test_base64_is_of_little_endian_floats():
    tokens = [TOKENIZER.encode(text) for text in TEXTS]
    with served() as server:
        body = {"input": tokens, "encoding_format": "base64"}
        answer = (await server.post(PATH, body)).json()
    for entry, text in zip(answer["data"], TEXTS, strict=True):
        written = base64.b64decode(entry["embedding"])
        assert np.frombuffer(written, "<f4").tolist() == vector(text)


async def test_the_model_in_the_package(llm: LLM):
    app, running = application(llm.loaded, names=["tales"], sampling={})
    llm.engine.reset()
    expected = llm.embed(TEXTS)
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            answer = await client.embeddings.create(model="tales", input=TEXTS)
            mean = await client.embeddings.create(
                model="tales",
                input=TEXTS[0],
                extra_body={"pooling": "mean", "normalize": False},
            )
    running.close()
    for entry, output in zip(answer.data, expected, strict=True):
        near = pytest.approx(output.outputs.embedding, abs=1e-4)
        assert entry.embedding == near
    assert np.linalg.norm(mean.data[0].embedding) != pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"input": None}, "input", "input must be a text or token ids"),
        ({"input": []}, "input", "not empty"),
        ({"input": [[]]}, "input", "prompt 0 is empty"),
        ({"input": ["a", 5]}, "input", "whole numbers"),
        ({"input": "word " * 100}, "input", "max_model_len"),
        ({"input": [[10**6]]}, "input", "vocabulary"),
        ({"input": ["a"] * 9}, "input", "at most 8"),
        ({"dimensions": 9}, "dimensions", "have 8 numbers"),
        ({"dimensions": 0}, "dimensions", "use an integer from 1"),
        ({"dimensions": 1.5}, "dimensions", "integer"),
        ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"pooling": "max"}, "pooling", "'last' or 'mean'"),
        ({"priority": 3}, "priority", "only 0 is taken"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "use 1 to 64"),
        ({"stream": True}, "stream", "not supported"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(given: dict[str, Any], param: str, said: str):
    with served() as server:
        response = await server.post(PATH, {"input": "Once"} | given)
        fine = await server.post(PATH, {"input": "Once"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert said in error["message"], error["message"]
    assert error["param"] == param
    assert fine.status_code == 200


async def test_a_model_that_is_not_served():
    with served() as server:
        response = await server.post(PATH, {"input": "Once", "model": "gpt"})
    assert response.status_code == 404


async def test_limits_hold_as_for_other_requests():
    hung = FakeEngine(max_sequences=1, crowd=2)
    with served(hung) as server:
        waiting = asyncio.create_task(server.post(PATH, {"input": "Once"}))
        await asyncio.to_thread(wait_until, lambda: bool(hung.sequences))
        full = await server.post(PATH, {"input": "Once"})
        hung.crowd = 0
        assert (await waiting).status_code == 200
    assert full.status_code == 503 and full.headers["retry-after"]
    with served(FakeEngine(crowd=2), limits=Limits(seconds=0.2)) as server:
        assert (await server.post(PATH, {"input": "Once"})).status_code == 504
    with served(api_keys=["secret"]) as server:
        assert (await server.post(PATH, {"input": "Once"})).status_code == 401


async def test_tokens_are_charged(tmp_path: pathlib.Path):
    path = tmp_path / "keys.toml"
    path.write_text('[keys.a]\nkey = "secret"\ntokens_per_minute = 5\n')
    path.chmod(0o600)
    headers, body = {"authorization": "Bearer secret"}, {"input": TEXTS[0]}
    with served(keyring=Keyring(file=path)) as server:
        async with server.client as client:
            first = await client.post(PATH, json=body, headers=headers)
            second = await client.post(PATH, json=body, headers=headers)
    assert (first.status_code, second.status_code) == (200, 429)


async def test_one_that_is_aborted_says_so():
    hung = FakeEngine(crowd=3)
    with served(hung) as server:
        async with server.client as client:
            headers = {"x-request-id": "mine"}
            body = {"input": TEXTS}
            waiting = asyncio.create_task(client.post(PATH, json=body, headers=headers))
            await server.all_taken(1)
            done = await client.post("/v1/requests/embd-mine/abort")
            assert done.status_code == 200, done.text
            response = await waiting
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "aborted"


class Broken(FakeEngine):
    """One whose vectors are no numbers."""

    def step(self) -> list[tuple[FakeSequence, Increment]]:
        made = super().step()
        for _, increment in made:
            increment.finish_reason = FinishReason.NON_FINITE
            increment.embedding[:] = np.nan  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  (Embedded)
        return made


async def test_vectors_that_are_no_numbers():
    with served(Broken()) as server:
        response = await server.post(PATH, {"input": TEXTS})
    assert response.status_code == 500
    assert json.loads(response.text)["error"]["code"] == "non_finite_logits"
