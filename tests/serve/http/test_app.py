"""What stands around the answers: keys, health, metrics, models, tokens."""

import dataclasses
import re

import pytest

import fdjax
from fdjax.errors import EngineDeadError
from tests.support.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.support.http_server import (
    CHAT,
    MODEL,
    PROMPT,
    TEXT,
    TOKENIZER,
    TOKENS,
    served,
)

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
OPEN = ["/health", "/ping", "/metrics"]
CLOSED = [
    "/",
    "/v1/models",
    "/v1/models/tales",
    "/version",
    "/openapi.json",
    "/no/such",
    "/Health",
    "/health/",
]
WRONG = [
    {},
    {"authorization": "Bearer "},
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer seconds"},
    {"authorization": "Basic second"},
    {"authorization": "second"},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
async def test_without_a_key_only_what_machines_watch_is_open(
    headers: dict[str, str],
):
    with served(api_keys=["first", "second"]) as server:
        async with server.client as client:
            for path in OPEN:
                assert (await client.get(path, headers=headers)).status_code == 200
            for path in CLOSED:
                response = await client.get(path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
            response = await client.post(COMPLETIONS, json=PROMPT, headers=headers)
            assert response.status_code == 401
    assert not server.engine.added


@pytest.mark.parametrize("key", ["first", "second"])
async def test_any_of_the_keys_opens(key: str):
    with served(api_keys=["first", "second"]) as server:
        async with server.client as client:
            client.headers["authorization"] = f"Bearer {key}"
            assert (await client.get("/v1/models")).status_code == 200
            response = await client.post(COMPLETIONS, json=PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT
    assert [sequence.origin.tenant for sequence in server.engine.added] == [
        {"first": "key-1", "second": "key-2"}[key]
    ]


async def test_priorities_are_for_the_operator_to_allow():
    body = PROMPT | {"priority": -1}
    with served() as server:
        response = await server.post(COMPLETIONS, body)
        assert response.json()["error"]["param"] == "priority"
        assert (await server.post(COMPLETIONS, PROMPT | {"priority": 0})).is_success
    with served(allow_priority=True) as server:
        assert (await server.post(COMPLETIONS, body)).is_success
    (sequence,) = server.engine.added
    assert (sequence.origin.priority, sequence.origin.tenant) == (-1, "")


async def test_models():
    with served() as server:
        answer = (await server.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [entry["id"] for entry in answer["data"]] == ["tales", "tales-5m"]
    assert answer["data"][0]["max_model_len"] == MAX_MODEL_LEN


async def test_tokens_there_and_back():
    text = "The fox: “No!”"
    with served() as server:
        answer = (await server.post("/tokenize", {"prompt": text})).json()
        assert answer["tokens"] == TOKENIZER.encode(text)
        assert answer["count"] == len(answer["tokens"])
        assert answer["max_model_len"] == MAX_MODEL_LEN
        plain = {"prompt": text, "add_special_tokens": False}
        plain_answer = (await server.post("/tokenize", plain)).json()
        assert plain_answer["tokens"] == TOKENIZER.encode_plain(text)
        back = await server.post("/detokenize", {"tokens": answer["tokens"]})
        assert back.json() == {"prompt": text}
        chat = (await server.post("/tokenize", CHAT)).json()
        assert chat["tokens"] == TOKENIZER.encode("Once")


async def test_a_model_without_a_tokenizer_serves_token_ids():
    with served(tokenizer=None) as server:
        body = {"prompt": [5, 6], "max_tokens": 32, "logprobs": 0}
        answer = (await server.post(COMPLETIONS, body)).json()
        text = await server.post(COMPLETIONS, PROMPT)
    (choice,) = answer["choices"]
    assert choice["text"] == ""
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in TOKENS]
    assert text.status_code == 400
    assert text.json()["error"]["param"] == "prompt"


async def test_a_full_queue_says_when_to_come_back():
    with served(FakeEngine(TOKENS, max_sequences=0)) as server:
        response = await server.post(COMPLETIONS, PROMPT)
        metrics = (await server.get("/metrics")).text
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "queue_full"
    assert 'fdjax:admission_rejections_total{model_name="tales"} 1.0' in metrics


async def test_a_draining_server_takes_nothing_new():
    with served() as server:
        assert (await server.get("/health")).status_code == 200
        server.app.state.server.draining = True
        assert (await server.get("/health")).status_code == 503
        response = await server.post(COMPLETIONS, PROMPT)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_engine_is_told_to_everybody(stream: bool):
    with served(FakeEngine(TOKENS, fails_at=2)) as server:
        body = PROMPT | {"stream": stream}
        during = await server.post(COMPLETIONS, body)
        after = await server.post(COMPLETIONS, body)
        health = await server.get("/health")
    assert during.status_code == (200 if stream else 503)
    assert '"code":"engine_dead"' in during.text
    assert "told to fail" not in during.text
    if stream:
        assert during.text.endswith("data: [DONE]\n\n")
    assert (after.status_code, health.status_code) == (503, 503)
    assert after.json()["error"]["code"] == "engine_dead"
    assert server.llm.errored
    with pytest.raises(EngineDeadError):
        await server.llm.start(["Once"], server.engine.added[0].request.params)


@pytest.mark.usefixtures("apart")
async def test_metrics_count_what_was_served():
    with served() as server:
        await server.post(COMPLETIONS, PROMPT | {"n": 2})
        await server.post(COMPLETIONS, PROMPT | {"stream": True, "max_tokens": 3})
        text = (await server.get("/metrics")).text
    values = dict(re.findall(r'^(fdjax:\w+)\{model_name="tales"\} (\S+)$', text, re.M))
    prompt = len(TOKENIZER.encode("Once"))
    assert float(values["fdjax:prompt_tokens_total"]) == 3 * prompt
    assert float(values["fdjax:generation_tokens_total"]) == 2 * len(TOKENS) + 3
    assert float(values["fdjax:num_requests_unfinished"]) == 0
    assert float(values["fdjax:time_to_first_token_seconds_count"]) == 3
    gaps = 2 * (len(TOKENS) - 1) + 2
    assert float(values["fdjax:inter_token_latency_seconds_count"]) == gaps
    assert float(values["fdjax:e2e_request_latency_seconds_count"]) == 3
    assert float(values["fdjax:request_params_n_sum"]) == 3
    longest = "fdjax:request_max_num_generation_tokens"
    assert float(values[f"{longest}_count"]) == 2
    assert float(values[f"{longest}_sum"]) == len(TOKENS) + 3
    for name in ("queue", "prefill", "decode", "inference"):
        assert float(values[f"fdjax:request_{name}_time_seconds_count"]) == 3
    parts = [
        values[f"fdjax:request_{n}_time_seconds_sum"] for n in ("queue", "inference")
    ]
    whole = float(values["fdjax:e2e_request_latency_seconds_sum"])
    assert sum(map(float, parts)) == pytest.approx(whole)
    counts = {"stop": 2.0, "length": 1.0, "abort": 0.0, "error": 0.0}
    for reason, count in counts.items():
        labels = f'{{finished_reason="{reason}",model_name="tales"}}'
        assert f"fdjax:request_success_total{labels} {count}" in text


async def test_the_openapi_document_names_the_fields():
    with served() as server:
        document = (await server.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert "repetition_penalty" in schemas["ChatBody"]["properties"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]


async def test_one_model_whose_name_is_a_path():
    model = dataclasses.replace(MODEL, names=("org/tales", "tales"))
    with served(model=model) as server:
        answers = [
            (await server.get(f"/v1/models/{name}")).json() for name in model.names
        ]
        listed = (await server.get("/v1/models")).json()["data"]
        missing = await server.get("/v1/models/org/no-such")
    assert [answer["id"] for answer in answers] == ["org/tales", "tales"]
    assert answers == listed
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_the_version():
    with served() as server:
        assert (await server.get("/version")).json() == {"version": fdjax.__version__}


async def test_metrics_by_another_prefix():
    with served() as server, served(metrics_prefix="vllm") as other:
        usual = (await server.get("/metrics")).text
        renamed = (await other.get("/metrics")).text
    names = {line.split("{")[0] for line in usual.splitlines() if "fdjax:" in line}
    assert len(names) > 50
    found = {line.split("{")[0] for line in renamed.splitlines()}
    assert {name.replace("fdjax:", "vllm:") for name in names} <= found
    assert "fdjax:" not in renamed


ORIGIN = "https://chat.example.com"


@pytest.mark.parametrize(
    ("allowed", "is_let_in"), [((), False), ((ORIGIN,), True), (("*",), True)]
)
async def test_scripts_of_sites(allowed: tuple[str, ...], is_let_in: bool):
    ask = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    with served(api_keys=["first"], allowed_origins=allowed) as server:
        async with server.client as client:
            asked = await client.options("/v1/completions", headers=ask)
            told = await client.get("/v1/models", headers={"origin": ORIGIN})
            other = {"origin": "https://example.com"}
            strange = await client.get("/v1/models", headers=other)
    allow = "access-control-allow-origin"
    assert (asked.status_code == 200) == is_let_in
    assert told.status_code == 401, "a key is wanted all the same"
    for answer in (asked, told):
        assert (answer.headers.get(allow) in (ORIGIN, "*")) == is_let_in
    assert (allow in strange.headers) == ("*" in allowed)
