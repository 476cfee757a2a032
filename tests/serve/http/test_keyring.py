"""Keys with names: whose they are, what they may use, and the file read again."""

import asyncio
import hmac
import logging
import pathlib
import re
import threading
from typing import Any

import httpx2
import pytest

from fdjax.errors import ConfigError
from fdjax.serve.http import keyring as keyring_module
from fdjax.serve.http.api_key import ApiKey
from fdjax.serve.http.keyring import Keyring
from tests.support.clock import Clock
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    PROMPT,
    TOKENIZER,
    TOKENS,
    Served,
    served,
)

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
PROMPT_TOKENS = len(TOKENIZER.encode("Once"))
ALICE = '[keys.alice]\nkey = "a-key"\n'
BOB = '[keys.bob]\nkey = "b-key"\n'


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "keys.toml"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def ask(
    server: Served, key: str, path: str = COMPLETIONS, **fields: Any
) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"}
    async with server.client as client:
        return await client.post(path, json=PROMPT | fields, headers=headers)


async def metrics(server: Served) -> dict[str, float]:
    """Those with a key, without their prefix and the model's name."""
    text = (await server.get("/metrics")).text
    found = re.findall(r"^fdjax:(key_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    own = (
        (f"{name}{{{re.sub(r',?model_name="[^"]*"', '', labels)}}}", float(value))
        for name, labels, value in found
    )
    return dict(own)


async def test_each_key_is_known_by_its_name(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "fdjax")
    file.write_text(ALICE + BOB + "priority = true\n")
    with served(keyring=Keyring(["other"], file)) as server:
        assert (await ask(server, "a-key")).is_success
        assert (await ask(server, "b-key", priority=-1)).is_success
        assert (await ask(server, "other")).is_success
        assert (await ask(server, "a-key", priority=-1)).status_code == 400
        assert (await ask(server, "c-key")).status_code == 401
    tenants = [sequence.origin.tenant for sequence in server.engine.added]
    assert tenants == ["alice", "bob", "key-1"]
    fields = [getattr(one, "fields", {}) for one in caplog.records]
    names = [one.get("key") for one in fields if "status" in one]
    assert names == ["alice", "bob", "key-1", "alice", None]
    assert "-key " not in caplog.text


async def test_no_key_finds_the_cached_prefixes_of_another(file: pathlib.Path):
    file.write_text(
        ALICE + BOB + '[keys.c1]\nkey = "c1"\ncache_salt = "alice"\n'
        '[keys.c2]\nkey = "c2"\ncache_salt = "alice"\n'
    )
    with served(keyring=Keyring(file=file)) as server:
        for key in ("a-key", "b-key", "c1", "c2"):
            await ask(server, key)
            await ask(server, key, cache_salt="x")
        salts = [sequence.origin.salt for sequence in server.engine.added]
        mine = salts[0].decode("latin-1")
        assert (await ask(server, "b-key", cache_salt=mine)).is_success
    assert salts[4:6] == salts[6:8], "they share what the file says they share"
    assert len({*salts}) == 6
    assert server.engine.added[-1].origin.salt not in salts


async def test_requests_a_minute(file: pathlib.Path, clock: Clock):
    file.write_text(ALICE + "requests_per_minute = 2\n" + BOB)
    with served(keyring=Keyring(file=file, clock=clock)) as server:
        for path in (COMPLETIONS, "/tokenize"):
            assert (await ask(server, "a-key", path)).status_code != 429
        refused = await ask(server, "a-key")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "30"
        error = refused.json()["error"]
        assert error["code"] == "rate_limit_exceeded"
        assert "is 2, of which 2 are used" in error["message"]
        ending = await ask(server, "a-key", "/v1/requests/none/abort")
        assert ending.status_code != 429, "to end a request is always possible"
        assert (await ask(server, "b-key")).is_success
        clock.now += 30
        assert (await ask(server, "a-key")).is_success


async def test_tokens_a_minute(file: pathlib.Path, clock: Clock):
    made = 2 * len(TOKENS)
    quota = PROMPT_TOKENS + made
    file.write_text(ALICE + f"tokens_per_minute = {quota}\n")
    with served(keyring=Keyring(file=file, clock=clock)) as server:
        assert (await ask(server, "a-key", n=2)).is_success
        refused = await ask(server, "a-key")
        assert refused.status_code == 429
        message = refused.json()["error"]["message"]
        assert f"is {quota}, of which {quota} are used" in message
        assert f"wants {PROMPT_TOKENS}" in message
        clock.now += int(refused.headers["retry-after"])
        assert (await ask(server, "a-key", stream=True)).is_success
    assert len(server.engine.added) == 3


async def test_many_at_once_get_no_more_than_one_after_the_other(
    file: pathlib.Path, clock: Clock
):
    file.write_text(ALICE + f"tokens_per_minute = {3 * PROMPT_TOKENS}\n")
    engine = FakeEngine(TOKENS, crowd=3)
    with served(engine, keyring=Keyring(file=file, clock=clock)) as server:
        answers = await asyncio.gather(*(ask(server, "a-key") for _ in range(20)))
    assert sorted({answer.status_code for answer in answers}) == [200, 429]
    assert len(engine.added) == 3


async def test_metrics_by_name(file: pathlib.Path, clock: Clock):
    file.write_text(ALICE + "requests_per_minute = 1\n" + BOB)
    with served(keyring=Keyring(file=file, clock=clock)) as server:
        for key in ("a-key", "a-key", "b-key", "c-key"):
            await ask(server, key, n=2)
        assert await metrics(server) == {
            'key_requests_total{key="alice"}': 1,
            'key_requests_total{key="bob"}': 1,
            'key_prompt_tokens_total{key="alice"}': PROMPT_TOKENS,
            'key_prompt_tokens_total{key="bob"}': PROMPT_TOKENS,
            'key_generation_tokens_total{key="alice"}': 2 * len(TOKENS),
            'key_generation_tokens_total{key="bob"}': 2 * len(TOKENS),
            'key_refusals_total{key="alice",quota="requests_per_minute"}': 1,
            'key_quota{key="alice",quota="requests_per_minute"}': 1,
            'key_requests_running{key="alice"}': 6,
            'key_requests_running{key="bob"}': 0,
            'key_requests_waiting{key="alice"}': 4,
            'key_requests_waiting{key="bob"}': 0,
            "key_file_last_read_successful{}": 1,
        }
        text = (await server.get("/metrics")).text
    assert "a-key" not in text


async def test_the_file_is_read_again(file: pathlib.Path, clock: Clock):
    file.write_text(ALICE + "requests_per_minute = 2\n" + BOB)
    keyring = Keyring(file=file, clock=clock)
    with served(keyring=keyring) as server:
        assert (await ask(server, "a-key")).is_success
        file.write_text(
            ALICE.replace("a-key", "new") + "requests_per_minute = 3\n"
            '[keys.carol]\nkey = "c-key"\n'
        )
        keyring.read_again()
        assert (await ask(server, "a-key")).status_code == 401
        assert (await ask(server, "b-key")).status_code == 401
        assert (await ask(server, "c-key")).is_success
        statuses = [(await ask(server, "new")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429], "what was used stays used"
        assert (await metrics(server))['key_requests_total{key="alice"}'] == 3


async def test_who_comes_again_has_used_what_was_used(file: pathlib.Path, clock: Clock):
    quotas = ALICE + "requests_per_minute = 2\n"
    file.write_text(quotas + BOB)
    keyring = Keyring(file=file, clock=clock)
    with served(keyring=keyring) as server:
        for _ in range(2):
            assert (await ask(server, "a-key")).is_success
        for content in (BOB, quotas + BOB):
            file.write_text(content)
            keyring.read_again()
        assert (await ask(server, "a-key")).status_code == 429
        file.write_text(BOB)
        keyring.read_again()
        clock.now += 60
        keyring.read_again()
        assert not keyring._left, "nobody is remembered for ever"


async def test_a_file_that_takes_long_holds_up_nobody(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """It is read once more for all who ask meanwhile."""
    file.write_text(ALICE)
    keyring, free = Keyring(file=file), threading.Event()
    read, reads = keyring_module.read_keys, list[str]()

    def slowly(path: pathlib.Path) -> list[ApiKey]:
        reads.append(path.read_text())
        assert free.wait(30)
        return read(path)

    monkeypatch.setattr(keyring_module, "read_keys", slowly)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keyring.read_beside())
        while not reads:
            await asyncio.sleep(0.001)
        file.write_text(BOB)
        for _ in range(3):
            tasks.create_task(keyring.read_beside())
        await asyncio.sleep(0)
        assert [*keyring.tenants] == ["alice"]
        free.set()
    assert [*keyring.tenants] == ["bob"]
    assert len(reads) == 2


@pytest.mark.parametrize(
    "broken", ["", "[keys", BOB + BOB, BOB + ALICE + "rpm = 1\n", None]
)
async def test_a_broken_file_changes_nothing(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture, broken: str | None
):
    file.write_text(ALICE)
    keyring = Keyring(file=file)
    with served(keyring=keyring) as server:
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        keyring.read_again()
        (record,) = (one for one in caplog.records if "stay as" in one.getMessage())
        assert record.levelno == logging.ERROR
        assert str(file) in record.getMessage()
        assert (await ask(server, "a-key")).is_success
        assert (await ask(server, "b-key")).status_code == 401
        name = "key_file_last_read_successful{}"
        assert (await metrics(server))[name] == 0
        file.write_text(ALICE)
        keyring.read_again()
        assert (await metrics(server))[name] == 1


async def test_requests_of_a_removed_key_go_on_to_their_end(file: pathlib.Path):
    file.write_text(ALICE + BOB)
    keyring = Keyring(file=file)
    engine = FakeEngine(TOKENS, crowd=2)
    with served(engine, keyring=keyring) as server:
        running = asyncio.create_task(ask(server, "a-key", stream=True))
        while not engine.added:
            await asyncio.sleep(0.001)
        file.write_text(BOB)
        keyring.read_again()
        assert (await ask(server, "a-key")).status_code == 401
        assert (await ask(server, "b-key")).is_success
        answer = await running
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' in answer.text


@pytest.mark.parametrize(
    "again", [ALICE + '[keys.b]\nkey = "a-key"\n', '[keys.key-1]\nkey = "a-key"\n']
)
def test_a_key_says_who_asks(file: pathlib.Path, again: str):
    file.write_text(again)
    with pytest.raises(ConfigError, match=r"change one's name|written twice"):
        Keyring(["other"], file)


def test_one_key_twice_is_no_tenant(file: pathlib.Path):
    with pytest.raises(ConfigError, match="'key-1' is written twice"):
        Keyring(["same", "same"])


def test_a_key_is_compared_with_all_whichever_it_is(monkeypatch: pytest.MonkeyPatch):
    keyring, compared = Keyring(["first", "second", "third"]), [0]

    def counting(one: bytes, other: bytes) -> bool:
        compared[0] += 1
        assert len(one) == len(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", counting)
    counts: set[int] = set()
    for key in (b"first", b"third", b"none", b"", b"x" * 1000):
        compared[0] = 0
        keyring.owner(key)
        counts.add(compared[0])
    assert counts == {3}
