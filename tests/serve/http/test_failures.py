"""What the engine gives up is told by an error and counted, and no stream holds NaN."""

import json

import pytest

from fdjax.engine.request import Increment
from fdjax.generate.stopping import FinishReason
from tests.support.fake_engine import FakeEngine, FakeSequence
from tests.support.http_server import CHAT, PROMPT, TEXT, TOKENS, served

pytestmark = pytest.mark.anyio

PATHS = [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]
FAILURES = [
    (FinishReason.NON_FINITE, 500, "non_finite_logits"),
    (FinishReason.SLOW_GRAMMAR, 400, "grammar_too_slow"),
]


class Failing(FakeEngine):
    """Gives requests with a seed of 1 up after two tokens."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(TOKENS)
        self.reason = reason

    def _advance(self, sequence: FakeSequence) -> Increment:
        increment = super()._advance(sequence)
        if sequence.request.params.seed == 1 and sequence.num_made == 3:
            return Increment(increment.index, [], None, self.reason)
        return increment


@pytest.mark.parametrize(("path", "good"), PATHS)
@pytest.mark.parametrize(("reason", "status", "code"), FAILURES)
async def test_a_whole_answer_is_an_error(
    path: str, good: dict[str, object], reason: FinishReason, status: int, code: str
):
    with served(Failing(reason)) as server:
        response = await server.post(path, good | {"seed": 1})
        assert (await server.post(path, good)).status_code == 200
        metrics = (await server.get("/metrics")).text
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    counted = f'request_failures_total{{model_name="tales",reason="{code}"}} 1.0'
    assert counted in metrics
    assert 'finished_reason="error",model_name="tales"} 1.0' in metrics


@pytest.mark.parametrize(("path", "good"), PATHS)
@pytest.mark.parametrize(("reason", "_", "code"), FAILURES)
async def test_a_stream_ends_with_an_error(
    path: str, good: dict[str, object], reason: FinishReason, _: int, code: str
):
    with served(Failing(reason)) as server:
        body = good | {"seed": 1, "stream": True}
        response = await server.post(path, body)
        assert server.llm.num_unfinished == 0
    assert response.status_code == 200
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *parts, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert last["error"]["code"] == code
    choices = [part["choices"][0] for part in parts]
    assert {choice["finish_reason"] for choice in choices} == {None}
    texts = [c["text"] if "text" in c else c["delta"].get("content") for c in choices]
    text = "".join(filter(None, texts))
    assert text
    assert TEXT.startswith(text), "what was made before is kept"
