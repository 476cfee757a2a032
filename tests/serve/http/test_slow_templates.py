"""A chat template without end holds up its own request alone."""

import dataclasses
import json
import pathlib
import shutil

import httpx2
import pytest

from fdjax.serve import chat_template
from fdjax.serve.chat_template import ChatTemplate
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, FOLDER, MODEL, TOKENS, listening, served
from tests.support.quiet import BUSY_S, quiet


def test_others_notice_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_template, "SECONDS", 2 * BUSY_S)
    folder = tmp_path / "model"
    shutil.copytree(FOLDER, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{10**(10**8)%7}}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = dataclasses.replace(MODEL, chat=ChatTemplate(folder).render)
    with (
        served(FakeEngine(TOKENS, step_s=0.005), model=model) as server,
        listening(server.app) as port,
        quiet(port) as beside,
        beside.undisturbed(),
    ):
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        answer = httpx2.post(url, json=CHAT, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert f"more than {2 * BUSY_S:g} seconds" in answer.json()["error"]["message"]
