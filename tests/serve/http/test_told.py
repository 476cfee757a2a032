"""What is told of tokens where a request asks for it: ids, and the prompt's scores."""

import asyncio
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from fdjax.engine.request import Logprob
from fdjax.serve.http import told, whole
from fdjax.serve.http.logprobs import TokenTexts
from tests.support.conversation import CALL, TOOLS, Conversation
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, PROMPT, TEXT, TOKENIZER, TOKENS, served

pytestmark = pytest.mark.anyio

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ONCE = TOKENIZER.encode("Once")
IDS = {"return_token_ids": True}


async def answer(path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    with served() as server:
        response = await server.post(path, body | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def events(path: str, body: dict[str, Any], **fields: Any) -> list[Any]:
    with served() as server:
        response = await server.post(path, body | fields | {"stream": True})
    lines = response.text.split("\n\n")[:-2]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def joined(lists: Iterable[list[int]]) -> list[int]:
    return [*itertools.chain.from_iterable(lists)]


# --- Token ids ------------------------------------------------------------------------


async def test_ids_of_completions():
    prompts = ["Once", [5, 6]]
    choices = (await answer(COMPLETIONS, PROMPT, prompt=prompts, n=2, **IDS))["choices"]
    told = [choice["prompt_token_ids"] for choice in choices]
    assert told == [ONCE, ONCE, [5, 6], [5, 6]]
    assert [choice["token_ids"] for choice in choices] == [TOKENS] * 4


async def test_ids_of_chats():
    whole = await answer(CHATS, CHAT, n=2, **IDS)
    assert whole["prompt_token_ids"] == ONCE
    assert [choice["token_ids"] for choice in whole["choices"]] == [TOKENS] * 2
    assert all("prompt_token_ids" not in choice for choice in whole["choices"])


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": False}], ids=str)
@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHATS, CHAT)])
async def test_nothing_is_told_unasked(path: str, body: Any, fields: dict[str, Any]):
    made = [await answer(path, body, **fields), *await events(path, body, **fields)]
    assert "token_ids" not in json.dumps(made)
    assert "prompt_logprobs" not in json.dumps(made)


@pytest.mark.parametrize("echo", [False, True])
async def test_ids_of_streamed_completions(echo: bool):
    made = await events(COMPLETIONS, PROMPT, n=2, echo=echo, **IDS)
    for index in range(2):
        choices = [e["choices"][0] for e in made if e["choices"][0]["index"] == index]
        assert choices[0]["prompt_token_ids"] == ONCE
        assert all("prompt_token_ids" not in choice for choice in choices[1:])
        assert joined(choice["token_ids"] for choice in choices) == TOKENS
        text = "".join(choice["text"] for choice in choices)
        assert text == ("Once" if echo else "") + TEXT


async def test_ids_of_streamed_chats():
    first, *made = await events(CHATS, CHAT, **IDS)
    assert first["prompt_token_ids"] == ONCE
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert all("prompt_token_ids" not in event for event in made)
    assert joined(event["choices"][0]["token_ids"] for event in made) == TOKENS


@pytest.mark.usefixtures("apart")
async def test_ids_whose_text_is_held_back_are_told_at_once():
    """Each chunk has one token, be there text of it or not."""
    made = await events(COMPLETIONS, PROMPT, stop=[TEXT + "!"], **IDS)
    assert [e["choices"][0]["token_ids"] for e in made] == [[], *([t] for t in TOKENS)]
    assert made[1]["choices"][0]["text"] == ""


async def test_ids_of_a_chat_that_calls():
    """Of several events of one chunk, the first has its tokens."""
    conversation = Conversation(CALL, per_step=10)
    given: Any = {"stream": True, "tools": TOOLS, "max_tokens": 500} | IDS
    with served(conversation.engine, model=conversation.model) as server:
        response = await server.post(CHATS, CHAT | given)
    choices = [
        json.loads(line[6:])["choices"][0] for line in response.text.split("\n\n")[:-2]
    ]
    told = (choice.get("token_ids", []) for choice in choices)
    assert joined(told) == conversation.engine.answer


async def test_ids_without_a_tokenizer():
    with served(tokenizer=None) as server:
        body = {"prompt": [5, 6], "max_tokens": 32} | IDS
        (choice,) = (await server.post(COMPLETIONS, body)).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6], TOKENS)


# --- Log-probabilities of prompts -----------------------------------------------------


def entry(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
    text = TOKENIZER.piece(token)
    return {str(token): {"logprob": logprob, "rank": rank, "decoded_token": text}}


async def test_scores_of_completions():
    first, second = (await answer(COMPLETIONS, PROMPT, n=2, prompt_logprobs=2))[
        "choices"
    ]
    begin, score = first["prompt_logprobs"]
    assert begin is None
    assert score == entry(ONCE[1], -2.0, 2) | entry(ONCE[1] + 1, -1.0, 1)
    assert [*score] == [str(ONCE[1]), str(ONCE[1] + 1)], "the prompt's own comes first"
    assert second["prompt_logprobs"] == first["prompt_logprobs"]
    assert first["logprobs"] is None


async def test_scores_of_chats():
    whole = await answer(CHATS, CHAT, n=2, prompt_logprobs=1)
    assert whole["prompt_logprobs"] == [
        None,
        entry(ONCE[1], -2.0, None) | entry(ONCE[1] + 1, -1.0, 1),
    ]
    assert all("prompt_logprobs" not in choice for choice in whole["choices"])


async def test_a_rank_is_told_where_it_is_known():
    (choice,) = (await answer(COMPLETIONS, PROMPT, prompt_logprobs=0))["choices"]
    assert choice["prompt_logprobs"] == [None, entry(ONCE[1], -2.0, None)]


@pytest.mark.parametrize(("scores", "tops"), [(4, 1), (0, 3), (2, 0)])
async def test_scores_beside_an_echo(scores: int, tops: int):
    """Each has as many as were asked for it."""
    given = {"echo": True, "logprobs": tops, "prompt_logprobs": scores}
    (choice,) = (await answer(COMPLETIONS, PROMPT, **given))["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]).endswith("Once" + TEXT)
    lengths = {len(top) for top in logprobs["top_logprobs"][1:]}
    assert lengths <= {max(tops, 1), tops + 1}
    assert len(choice["prompt_logprobs"][1]) == max(scores, 1) + (scores == 1)


async def test_scores_without_an_echo_are_no_logprobs():
    given = {"logprobs": 1, "prompt_logprobs": 3}
    (choice,) = (await answer(COMPLETIONS, PROMPT, **given))["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == TEXT


async def test_scores_of_a_long_prompt_leave_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[int] = []

    def counted(content: object) -> bytes:
        made.append(len(json.dumps(content)))
        return json.dumps(content).encode()

    for module in (told, whole):
        monkeypatch.setattr(module, "encoded", counted)
    engine = FakeEngine(TOKENS, max_model_len=10**6)
    prompt = [5 + place % 7 for place in range(3000)]
    given = PROMPT | {"prompt": prompt, "prompt_logprobs": 20, "n": 2} | IDS
    with served(engine) as server:
        response = await server.post(COMPLETIONS, given)
    assert max(made) < len(response.content) / 100
    for choice in response.json()["choices"]:
        begin, *scores = choice["prompt_logprobs"]
        assert begin is None
        assert [int(next(iter(score))) for score in scores] == prompt[1:]
        assert choice["prompt_token_ids"] == prompt


async def test_others_have_their_turn_while_a_prompt_is_written():
    rounds = 0

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    prompt = [5] * 20_000
    scores = [None, *[Logprob(-1.0, {5: -1.0})] * (len(prompt) - 1)]
    texts = TokenTexts(TOKENIZER)
    counting = asyncio.create_task(count_rounds())
    pieces = len(await told.prompt_logprobs(texts, prompt, scores, num_top=1))
    assert rounds >= pieces > 500
    rounds = 0
    pieces = len(await told.prompt_ids(prompt))
    counting.cancel()
    assert rounds >= pieces > 4


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs is 21"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        (
            COMPLETIONS,
            {"prompt_logprobs": -1, "echo": True, "logprobs": 2},
            "prompt_logprobs is -1",
        ),
        (COMPLETIONS, {"prompt_logprobs": 2, "stream": True}, "set stream to false"),
        (COMPLETIONS, {"prompt_logprobs": True}, "integer"),
        (
            COMPLETIONS,
            {"prompt_logprobs": 1, "use_beam_search": True, "n": 2},
            "not for beam search",
        ),
        (CHATS, {"prompt_logprobs": 21}, "prompt_logprobs is 21"),
        (CHATS, {"prompt_logprobs": 0, "stream": True}, "set stream to false"),
    ],
    ids=str,
)
async def test_scores_that_are_refused(path: str, fields: dict[str, Any], said: str):
    with served() as server:
        response = await server.post(
            path, {COMPLETIONS: PROMPT}.get(path, CHAT) | fields
        )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt_logprobs")
    assert said in error["message"]
