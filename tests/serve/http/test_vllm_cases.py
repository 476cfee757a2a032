"""What vLLM's own tests ask of a server, of the shipped model by OpenAI's client."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from fdjax import LLM
from fdjax.serve.http.wiring import application
from tests.support.http_server import listening

MODEL: Any = {"model": "tales-5m"}
STORY = "Once upon a time"
GREEDY: Any = MODEL | {"temperature": 0.0}
TEXT: Any = GREEDY | {"prompt": STORY, "max_tokens": 5}
CHAT: Any = GREEDY | {
    "messages": [
        {"role": "system", "content": "You tell tales."},
        {"role": "user", "content": STORY},
    ],
    "max_completion_tokens": 5,
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [7]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(llm: LLM) -> Iterator[openai.OpenAI]:
    app, serving = application(llm.loaded, names=["tales-5m"], sampling={})
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    serving.close()


def refused(call: Any, **fields: Any) -> str | None:
    with pytest.raises(openai.BadRequestError) as caught:
        call(**fields)
    return caught.value.param


def test_one_completion(client: openai.OpenAI):
    answer = client.completions.create(**TEXT)
    assert answer.id and len(answer.choices) == 1
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.logprobs) == ("length", None)
    assert len(choice.text) >= 5
    usage = answer.usage
    assert usage is not None and usage.completion_tokens == 5
    assert usage.total_tokens == usage.prompt_tokens + 5
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    ids = client.completions.create(**TEXT | {"prompt": [5] * 5})
    assert ids.choices[0].text and ids.usage and ids.usage.prompt_tokens == 5


@pytest.mark.parametrize("count", [0, 5])
def test_log_probabilities_of_a_completion(client: openai.OpenAI, count: int):
    (choice,) = client.completions.create(**TEXT, logprobs=count).choices
    assert choice.logprobs is not None
    tops = choice.logprobs.top_logprobs
    assert choice.logprobs.token_logprobs is not None and tops is not None
    assert len(choice.logprobs.token_logprobs) == len(tops) == 5
    assert all(max(count, 1) <= len(top) <= count + 1 for top in tops)


@pytest.mark.parametrize("count", [0, 5])
def test_log_probabilities_of_a_chat(client: openai.OpenAI, count: int):
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=count)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [len(one.top_logprobs) for one in logprobs.content] == [count] * 5
    unasked = client.chat.completions.create(**CHAT, logprobs=False, top_logprobs=0)
    assert unasked.choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_too_many_log_probabilities(client: openai.OpenAI, stream: bool):
    text, chat = client.completions.create, client.chat.completions.create
    assert refused(text, **TEXT, logprobs=21, stream=stream) == "logprobs"
    given: Any = {"logprobs": True, "top_logprobs": 21, "stream": stream}
    assert refused(chat, **CHAT, **given) == "top_logprobs"
    assert client.completions.create(**TEXT).choices[0].text, "it goes on"


def test_streams_say_what_whole_answers_say(client: openai.OpenAI):
    whole = client.completions.create(**TEXT).choices[0]
    parts = [part.choices[0] for part in client.completions.create(**TEXT, stream=True)]
    assert "".join(part.text for part in parts) == whole.text
    ends = [part.finish_reason for part in parts]
    assert ends == [None] * (len(parts) - 1) + ["length"]

    said = client.chat.completions.create(**CHAT).choices[0]
    deltas = [
        part.choices[0] for part in client.chat.completions.create(**CHAT, stream=True)
    ]
    assert deltas[0].delta.role == "assistant"
    text = "".join(part.delta.content or "" for part in deltas)
    assert text == said.message.content
    ends = [part.finish_reason for part in deltas]
    assert ends == [None] * (len(deltas) - 1) + ["length"]


@pytest.mark.parametrize(
    ("options", "at_the_end", "before"),
    [
        ({}, False, False),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": True, "continuous_usage_stats": False}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
    ],
    ids=str,
)
def test_stream_options(
    client: openai.OpenAI, options: Any, at_the_end: bool, before: bool
):
    for create, body in (
        (client.completions.create, TEXT),
        (client.chat.completions.create, CHAT),
    ):
        parts: Any = list(create(**body, stream=True, stream_options=options))
        if at_the_end:
            last = parts.pop()
            assert last.choices == [] and last.usage.completion_tokens == 5
        assert all((part.usage is not None) == before for part in parts)
        assert refused(create, **body, stream_options=options) == "stream_options"


def test_samples_side_by_side(client: openai.OpenAI):
    """Whole and streamed; they differ."""
    asked: Any = {**MODEL, "prompt": STORY, "n": 3, "temperature": 1.0, "seed": 42}
    asked |= {"max_tokens": 12}
    answer = client.completions.create(**asked, logprobs=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.text for choice in answer.choices]
    assert len({*texts}) == 3
    streamed: defaultdict[int, str] = defaultdict(str)
    ends = 0
    for part in client.completions.create(**asked, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
        ends += bool(part.choices[0].finish_reason)
    assert ends == 3 and [streamed[place] for place in range(3)] == texts


@pytest.mark.parametrize("prompts", [[STORY, STORY], [[5] * 5, [5] * 5]], ids=str)
def test_prompts_of_one_request(client: openai.OpenAI, prompts: Any):
    one, two = client.completions.create(**TEXT | {"prompt": prompts}).choices
    assert (one.index, two.index) == (0, 1) and one.text == two.text
    streamed = ["", ""]
    for part in client.completions.create(**TEXT | {"prompt": prompts}, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == [one.text, two.text]


@pytest.mark.parametrize("token", [7, 300])
def test_one_token_may_be_preferred_or_be_the_only_one(
    client: openai.OpenAI, token: int, llm: LLM
):
    wanted = llm.get_tokenizer().decode([token] * 5)
    biased = client.completions.create(**TEXT, logit_bias={str(token): 100})
    only = client.completions.create(**TEXT, extra_body={"allowed_token_ids": [token]})
    assert biased.choices[0].text == only.choices[0].text == wanted
    banned = client.completions.create(**TEXT, logit_bias={str(token): -100})
    assert banned.choices[0].text != wanted


def test_a_word_is_kept_away(client: openai.OpenAI):
    word = client.completions.create(**TEXT).choices[0].text.split()[0]
    answer = client.completions.create(**TEXT, extra_body={"bad_words": [word]})
    assert word not in answer.choices[0].text.split()
    chat = client.chat.completions.create(**CHAT, extra_body={"bad_words": [word]})
    assert word not in (chat.choices[0].message.content or "").split()


@pytest.mark.parametrize(
    "given",
    [
        {"logit_bias": {"4096": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"7": 101}},
        {"extra_body": {"allowed_token_ids": []}},
        {"extra_body": {"allowed_token_ids": [4096]}},
        {"extra_body": {"stop_token_ids": [-1]}},
        {"extra_body": {"bad_words": "word"}},
        {"extra_body": {"bad_words": [""]}},
    ],
    ids=str,
)
def test_what_names_no_token_or_word(client: openai.OpenAI, given: Any):
    (wrong,) = given.get("extra_body", given)
    assert refused(client.completions.create, **TEXT, **given) == wrong
    assert refused(client.chat.completions.create, **CHAT, **given) == wrong


@pytest.mark.parametrize(
    "prompt", [[], [[]], [4096], [-1], [5] * 129, None, [5, "a"], 5], ids=str
)
def test_what_is_no_prompt(client: openai.OpenAI, prompt: Any):
    create = client.completions.create
    assert refused(create, **TEXT | {"prompt": prompt}) == "prompt"


def test_an_echo(client: openai.OpenAI):
    plain = client.completions.create(**TEXT).choices[0].text
    echoed = client.completions.create(**TEXT, echo=True, logprobs=1).choices[0]
    assert echoed.text == STORY + plain
    logprobs = echoed.logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None for value in logprobs.token_logprobs[1:])
    assert logprobs.tokens is not None and len(logprobs.tokens) > 5


@pytest.mark.parametrize(
    ("form", "holds"),
    [
        ({"choice": ["Python", "Rust"]}, lambda text: text in ("Python", "Rust")),
        ({"json": SCHEMA}, lambda text: json.loads(text)["age"] == 7),
        ({"regex": "[0-9]{2}-[a-f]"}, lambda text: text[2] == "-" and len(text) == 4),
        ({"grammar": 'start: "SELECT " ("a" | "b")'}, lambda t: t[:7] == "SELECT "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_structured_outputs(client: openai.OpenAI, form: Any, holds: Any):
    given: Any = {"extra_body": {"structured_outputs": form}}
    text = client.completions.create(**TEXT | {"max_tokens": 60}, **given)
    assert holds(text.choices[0].text)
    chat = client.chat.completions.create(
        **CHAT | {"max_completion_tokens": 60}, **given
    )
    assert holds(chat.choices[0].message.content)


def test_words_of_before_are_refused(client: openai.OpenAI):
    given: Any = {"extra_body": {"guided_regex": "[0-9]"}}
    with pytest.raises(openai.BadRequestError, match="use structured_outputs"):
        client.chat.completions.create(**CHAT, **given)


def test_a_schema_as_response_format(client: openai.OpenAI):
    schema = {"name": "child", "schema": SCHEMA, "strict": True}
    form: Any = {"response_format": {"type": "json_schema", "json_schema": schema}}
    chat = client.chat.completions.create(
        **CHAT | {"max_completion_tokens": 60}, **form
    )
    text = chat.choices[0].message.content or ""
    assert json.loads(text)["age"] == 7 and " " not in text.split(":", 1)[0]


@pytest.mark.parametrize(
    "given",
    [
        {"stop": None, "tools": None, "tool_choice": None, "functions": None},
        {"max_tokens": 5},
        {"store": False, "prompt_cache_key": "one", "safety_identifier": "two"},
        {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "ignore_eos": False},
        {"skip_special_tokens": True, "spaces_between_special_tokens": False},
    ],
    ids=str,
)
def test_what_clients_send_besides(client: openai.OpenAI, given: Any):
    plain = client.chat.completions.create(**CHAT).choices[0].message
    answer = client.chat.completions.create(**CHAT, extra_body=given)
    assert answer.choices[0].message == plain


def test_a_message_goes_back_as_it_came(client: openai.OpenAI):
    """With all fields that OpenAI's type has, which are null."""
    message = client.chat.completions.create(**CHAT).choices[0].message
    told = [*CHAT["messages"], message.model_dump(), CHAT["messages"][-1]]
    again = client.chat.completions.create(**CHAT | {"messages": told})
    assert again.usage is not None
    assert again.usage.prompt_tokens > 20


@pytest.mark.parametrize("body", ["[]", '"a"', "1", "null", "{"])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_a_body_that_is_no_object(client: openai.OpenAI, path: str, body: str):
    with pytest.raises(openai.BadRequestError):
        client.post(
            f"/{path}",
            cast_to=object,
            content=body.encode(),
            options={"headers": {"content-type": "application/json"}},
        )
