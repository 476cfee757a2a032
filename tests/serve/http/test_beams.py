"""`use_beam_search`: the outputs of one search are the choices of an answer."""

import json
import pathlib
from typing import Any

import jax
import pytest

from fdjax import BeamSearchParams, RequestError, SamplingParams
from fdjax.engine.request import Request
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.schemas import CompletionBody
from tests.support import beam_models
from tests.support.beam_models import ModelCase
from tests.support.engines import tiny_engine
from tests.support.http_server import served

pytestmark = pytest.mark.anyio


def params_of(defaults: dict[str, Any] | None = None, **fields: Any) -> Any:
    body = CompletionBody.model_validate({"prompt": "Once"} | fields)
    return body.sampling({"logprobs": body.logprobs} | (defaults or {}))


def asked(case: ModelCase, **fields: Any) -> dict[str, Any]:
    words = case.params | {"stop_token_ids": case.ends, "ignore_eos": True}
    return {"prompt": case.prompt, "use_beam_search": True} | words | fields


@pytest.fixture(scope="module")
def case() -> ModelCase:
    return beam_models.expected("tales-5m")[-1]


async def test_choices_are_what_transformers_finds(case: ModelCase):
    """Whole and streamed, in the order of their scores."""
    model = beam_models.model_of("tales-5m")
    engine: Any = tiny_engine(model, max_model_len=64)
    with served(engine) as server:
        assert server.llm.tokenizer is not None
        made = [beam_models.shown(one, case) for one in case.tokens]
        texts = [server.llm.tokenizer.decode(one) for one in made]
        whole = await server.post("/v1/completions", asked(case, n=4))
        assert whole.status_code == 200, whole.text
        choices = whole.json()["choices"]
        assert [one["text"].strip() for one in choices] == [t.strip() for t in texts]
        assert [one["index"] for one in choices] == [0, 1, 2, 3]
        count = sum(map(len, case.tokens))
        assert whole.json()["usage"]["completion_tokens"] == count
        best = await server.post("/v1/completions", asked(case))
        assert [one["text"] for one in best.json()["choices"]] == [choices[0]["text"]]
        stream = await server.post("/v1/completions", asked(case, n=2, stream=True))
        events = stream.text.split("\n\n")[:-2]
        parts = [json.loads(one.removeprefix("data: ")) for one in events]
        streamed = ["", ""]
        for part in parts:
            (choice,) = part["choices"]
            streamed[choice["index"]] += choice["text"]
        assert streamed == [one["text"] for one in choices[:2]]


async def test_texts_that_end_forms_scores_and_the_best_so_far(case: ModelCase):
    """Each of what an answer may have besides texts."""
    engine: Any = tiny_engine(beam_models.model_of("tales-5m"), max_model_len=64)
    asking: dict[str, Any] = {
        "prompt": "Once upon a time", "use_beam_search": True, "beam_width": 4,
        "max_tokens": 12, "n": 2, "logprobs": 1,
    }  # fmt: skip
    with served(engine) as server:
        free = (await server.post("/v1/completions", asking)).json()["choices"]
        for choice in free:
            told = choice["logprobs"]
            assert "".join(told["tokens"]) == choice["text"]
            assert len(told["top_logprobs"][0]) == 1
        (word, *_) = free[0]["text"].split()[2:]
        stopped = await server.post("/v1/completions", asking | {"stop": [word]})
        assert not any(word in one["text"] for one in stopped.json()["choices"])
        reasons = {one["finish_reason"] for one in stopped.json()["choices"]}
        assert "stop" in reasons
        form = {"structured_outputs": {"choice": [" a fox", " a king"]}}
        formed = (await server.post("/v1/completions", asking | form)).json()
        texts = sorted(one["text"] for one in formed["choices"])
        assert texts == [" a fox", " a king"]
        options = {"stream": True, "stream_options": {"include_best": True}}
        stream = await server.post("/v1/completions", asking | options)
        events = stream.text.split("\n\n")[:-2]
        parts = [json.loads(one.removeprefix("data: ")) for one in events]
        best = [one["best_so_far"] for one in parts if "best_so_far" in one]
        assert len(best) > 5 and all(one["text"] and one["score"] < 0 for one in best)
        last = [one for one in parts if one["choices"]]
        assert [one["choices"][0]["text"] for one in last] == [
            one["text"] for one in free
        ]
        assert parts[: len(best)] == [one for one in parts if "best_so_far" in one]


def test_fields_are_those_of_beam_search_params():
    given: dict[str, Any] = {
        "use_beam_search": True, "beam_width": 5, "n": 2, "length_penalty": 0.5,
        "early_stopping": "never", "max_tokens": 9, "stop_token_ids": [3],
        "temperature": 0.0, "top_p": 1.0, "stop": [], "repetition_penalty": 1.1,
    }  # fmt: skip
    assert params_of(**given) == BeamSearchParams(
        beam_width=5,
        n=2,
        length_penalty=0.5,
        early_stopping="never",
        max_tokens=9,
        stop_token_ids=(3,),
        repetition_penalty=1.1,
    )


def test_without_a_width_n_is_the_width():
    found = params_of(use_beam_search=True, n=4)
    assert (found.beam_width, found.n) == (4, 4)
    found = params_of(use_beam_search=True, beam_width=4)
    assert (found.beam_width, found.n) == (4, 1)


def test_what_a_model_recommends_for_draws_is_no_matter():
    found = params_of({"temperature": 0.6, "top_p": 0.9}, use_beam_search=True, n=2)
    assert isinstance(found, BeamSearchParams)


def test_without_beams_nothing_changes():
    assert params_of(use_beam_search=False) == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 4}, "beam_width"),
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"early_stopping": False}, "early_stopping"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "seed": 1}, "seed"),
        ({"use_beam_search": True, "presence_penalty": -1.0}, "presence_penalty"),
        ({"num_beam_groups": 2}, "num_beam_groups"),
        ({"stream": True, "stream_options": {"include_best": True}}, "stream_options"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], param: str):
    with pytest.raises(ApiError, match=r"is (for|not for) beam") as told:
        params_of(**fields)
    assert told.value.body["error"]["param"] == param


def test_log_probabilities_of_prompts_are_refused_by_the_field_that_asks_for_them():
    for fields, param in (
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ):
        with pytest.raises(ApiError, match=f"^{param} is ") as told:
            params_of(
                {"prompt_logprobs": fields.get("prompt_logprobs")},
                use_beam_search=True,
                beam_width=2,
                **fields,
            )
        assert told.value.body["error"]["param"] == param
    assert params_of(use_beam_search=True, beam_width=2, echo=True).n == 1


def test_more_outputs_than_beams_are_refused():
    with pytest.raises(RequestError, match="n is 5 but beam_width is 4"):
        params_of(use_beam_search=True, beam_width=4, n=5)
    with pytest.raises(RequestError, match=r"temperature is 0\.5, but a beam search"):
        params_of(use_beam_search=True, temperature=0.5)
    assert params_of(use_beam_search=True, temperature=1).temperature == 0


async def test_a_search_that_finds_nothing_is_an_error():
    engine: Any = tiny_engine(max_num_seqs=4)
    search = {
        "prompt": [5], "use_beam_search": True, "beam_width": 3, "n": 2,
        "min_tokens": 3, "allowed_token_ids": [7], "stop_token_ids": [7],
    }  # fmt: skip
    with served(engine) as server:
        whole = await server.post("/v1/completions", search)
        stream = await server.post("/v1/completions", search | {"stream": True})
        metrics = (await server.get("/metrics")).text
    assert whole.status_code == 400
    assert whole.json()["error"]["code"] == "nothing_found"
    *_, last, done, end = stream.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert json.loads(last.removeprefix("data: ")) == whole.json()
    assert (
        'request_failures_total{model_name="tales",reason="nothing_found"}' in metrics
    )


async def test_searches_are_compiled_before_the_engine_has_them(
    monkeypatch: pytest.MonkeyPatch,
):
    """A step that compiled one would hold up everybody."""
    engine: Any = tiny_engine(beam_models.model_of("tales-5m"), max_model_len=64)
    search = {"prompt": [5, 6, 7], "use_beam_search": True, "ignore_eos": True}
    step = engine.step

    def untraced() -> Any:
        with jax.no_tracing(True):
            return step()

    with served(engine) as server:
        first = await server.post("/v1/completions", search | {"max_tokens": 1})
        assert first.status_code == 200, "prompts are compiled by now"
        monkeypatch.setattr(engine, "step", untraced)
        for fields in (
            {"beam_width": 3, "max_tokens": 30},
            {"beam_width": 4, "num_beam_groups": 2},
            {"beam_width": 2, "stop": ["zz"]},
        ):
            answer = await server.post("/v1/completions", search | fields)
            assert answer.status_code == 200, answer.text


async def test_nothing_is_compiled_for_what_a_key_may_not_ask(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Each kind of search is seconds of work, for which no quota would be used."""
    engine: Any = tiny_engine(max_num_seqs=4)
    prepare, kept = engine.prepare, list[bool]()

    def noted(request: Request, *, only_kept: bool) -> Request | None:
        kept.append(only_kept)
        return prepare(request, only_kept=only_kept)

    monkeypatch.setattr(engine, "prepare", noted)
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    file.write_text(
        '[keys.a]\nkey = "a"\ntokens_per_minute = 4\nmax_running_samples = 2\n'
    )
    plain = {"prompt": [5, 6, 7], "max_tokens": 1}
    search = plain | {"use_beam_search": True}
    with served(engine, keyring=Keyring(file=file)) as server:
        async with server.client as client:
            client.headers["authorization"] = "Bearer a"
            path = "/v1/completions"
            wide = await client.post(path, json=search | {"beam_width": 3})
            assert (wide.status_code, wide.json()["error"]["param"]) == (
                400,
                "beam_width",
            )
            assert (await client.post(path, json=plain)).is_success
            more = await client.post(path, json=search | {"beam_width": 2})
            assert more.status_code == 429
    assert False not in kept
