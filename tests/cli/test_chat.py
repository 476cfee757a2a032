"""`fdjax chat`: turns, what is forgotten, and how it ends."""

import json
import pathlib
import shutil
import sys
from typing import Any

import pytest

from fdjax import LLM, SamplingParams
from fdjax.cli import chat_commands
from fdjax.cli.conversation import Conversation
from fdjax.engine.runs import Runs
from fdjax.errors import to_install
from fdjax.models.source import SHIPPED, resolve
from tests.cli.conftest import Invoke

GREEDY = ("--temperature", "0", "--max-tokens", "12")
SAMPLING = {"temperature": 0.0, "max_tokens": 12, "seed": 0}


def expected(llm: LLM, prompt: str) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    return llm.generate(prompt, params)[0].text or ""


@pytest.fixture
def conversation(shared: LLM) -> Conversation:
    return Conversation(shared, SAMPLING, system=None)


def test_answers_continue_the_whole_conversation(invoke: Invoke, shared: LLM):
    result = invoke("chat", *GREEDY, text="Once upon a time\nThe king\n")
    first = expected(shared, "Once upon a time")
    second = expected(shared, f"Once upon a time\n{first}\nThe king")
    assert result.exit_code == 0
    assert result.stdout == f"{first}\n{second}\n"


def test_reset_forgets(invoke: Invoke, shared: LLM):
    result = invoke("chat", *GREEDY, text="The wood\n/reset\nThe king\n/exit\nA\n")
    first, second = expected(shared, "The wood"), expected(shared, "The king")
    assert result.stdout == f"{first}\n{second}\n"
    assert "forgotten" in result.stderr


def test_unknown_commands_are_not_messages(invoke: Invoke, shared: LLM):
    result = invoke("chat", *GREEDY, text="/hulp me\n")
    assert result.stdout == ""
    assert "there is no command /hulp" in result.stderr


def test_help_names_every_command(invoke: Invoke, shared: LLM):
    said = invoke("chat", *GREEDY, text="/help\n").stderr
    assert all(name in said for name in chat_commands.HELP)
    named = {name.split()[0] for name in chat_commands.HELP if name.startswith("/")}
    assert {*chat_commands._COMMANDS} <= named


def test_a_message_of_several_lines(invoke: Invoke, shared: LLM):
    lines = '"""/set in stone\nis the wood"""\n'
    result = invoke("chat", *GREEDY, text=lines)
    assert result.stdout == expected(shared, "/set in stone\nis the wood") + "\n"


def test_the_system_message_changes(invoke: Invoke, shared: LLM):
    lines = "/system\n/system The wood\nThe king\n/reset\n/system -\nThe king\n"
    result = invoke("chat", *GREEDY, text=lines)
    first, second = expected(shared, "The wood\nThe king"), expected(shared, "The king")
    assert result.stdout == f"{first}\n{second}\n"
    assert "[no system message]" in result.stderr
    assert "[system: The wood]" in result.stderr


def test_answers_are_drawn_as_is_set(conversation: Conversation):
    def run(line: str) -> None:
        assert chat_commands.run(conversation, line)

    run("/set max-tokens 3")
    conversation.answer("Once upon a time")
    assert conversation.sampling["max_tokens"] == 3
    shorter = conversation.turns[-1]["content"]
    conversation.reset()
    run("/set max_tokens -")
    conversation.answer("Once upon a time")
    assert conversation.sampling == SAMPLING
    assert conversation.turns[-1]["content"].startswith(shorter)
    assert conversation.turns[-1]["content"] != shorter
    run('/set stop ["king"]')
    assert conversation.sampling["stop"] == ["king"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/set tempera 1", "did you mean temperature?"),
        ("/set temperature hot", "temperature"),
        ("/set top_p 7", "top_p"),
        ("/set temperature NaN", "temperature"),
        ("/set top_k " + "[" * 100_000, "top_k"),
        ("/set n 3", "'n' is none of"),
        ("/save", "/save needs a file"),
        ("/save /nowhere/at/all.json", "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(
    conversation: Conversation,
    capsys: pytest.CaptureFixture[str],
    line: str,
    complaint: str,
):
    assert chat_commands.run(conversation, line)
    assert complaint in capsys.readouterr().err
    assert conversation.sampling == SAMPLING


def test_a_conversation_is_saved_once(
    conversation: Conversation,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    place = tmp_path / "chat.json"
    chat_commands.run(conversation, "/system The wood")
    conversation.answer("The king")
    chat_commands.run(conversation, f"/save {place}")
    saved = json.loads(place.read_text())
    roles = [message["role"] for message in saved["messages"]]
    assert roles == ["system", "user", "assistant"]
    assert saved["messages"][1]["content"] == "The king"
    chat_commands.run(conversation, f"/save {place}")
    assert "is there already" in capsys.readouterr().err


def test_the_model_may_stand_alone(invoke: Invoke, shared: LLM):
    result = invoke("chat", "tales-5m", *GREEDY, text="The king\n")
    assert result.exit_code == 0
    both = invoke("chat", "one", "--model", "another", text="")
    assert both.exit_code == 2
    assert "name one" in both.stderr


def test_a_system_message_stands_before_all_turns(invoke: Invoke, shared: LLM):
    result = invoke("chat", *GREEDY, "--system", "The wood", text="The king\n")
    assert result.stdout == expected(shared, "The wood\nThe king") + "\n"


def test_the_oldest_turns_are_dropped(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
):
    for number in range(5):
        conversation.answer(f"The king number {number} said " + "and so on " * 10)
    contents = [turn["content"] for turn in conversation.turns]
    assert "number 0" not in "".join(contents)
    assert "number 4" in contents[-2]
    assert conversation.turns[0]["role"] == "user"
    stderr = capsys.readouterr().err
    assert "[the conversation outgrew 128 tokens: 1 oldest turn was dropped]" in stderr


def test_a_message_too_long_is_refused(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
):
    conversation.answer("The king")
    before = conversation.turns
    capsys.readouterr()
    conversation.answer("word " * 200)
    captured = capsys.readouterr()
    assert conversation.turns == before
    assert captured.out == ""
    assert "error: this message makes" in captured.err
    assert "max_model_len is 128" in captured.err


def test_an_interrupt_stops_the_answer_and_not_the_chat(
    conversation: Conversation,
    shared: LLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    run = Runs.follow

    def interrupted(runs: Runs, sequences: Any) -> Any:
        increments = run(runs, sequences)
        yield next(increments)
        increments.close()  # pyright: ignore[reportAttributeAccessIssue]  (a generator)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runs, "follow", interrupted)
        conversation.answer("Once upon a time")
    assert conversation.turns[-1] == {"role": "assistant", "content": " there"}
    captured = capsys.readouterr()
    assert captured.out == " there\n"
    assert "[stopped]" in captured.err
    pool = shared.engine.scheduler.pool
    assert pool.num_free == pool.num_pages
    conversation.answer("The king")
    assert len(conversation.turns) == 4


def test_a_template_needs_its_extra_before_weights_are_read(
    invoke: Invoke, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(resolve(SHIPPED) / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    result = invoke("chat", str(tmp_path), text="A\n")
    assert result.exit_code == 1
    assert f"needs the package transformers; {to_install('chat')}" in result.stderr
    (tmp_path / "chat_template.jinja").unlink()
    assert "model.safetensors" in invoke("chat", str(tmp_path), text="A\n").stderr


def test_a_chat_needs_a_tokenizer(
    invoke: Invoke, shared: LLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared, "tokenizer", None)
    result = invoke("chat", text="A\n")
    assert result.exit_code == 1
    assert "has no tokenizer, and a chat is text" in result.stderr
