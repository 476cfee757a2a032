"""Files of API keys: what is taken, and what every broken one is told."""

import hashlib
import logging
import os
import pathlib

import pytest

from fdjax.errors import ConfigError
from fdjax.serve.http.accounts import Quotas
from fdjax.serve.http.key_file import MAX_BYTES, MAX_KEYS, read_keys

SECRET = "sk-secret"
HASHED = hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "keys.toml"
    path.touch(mode=0o600)
    return path


def test_all_that_can_be_said_of_a_key(file: pathlib.Path):
    file.write_text(
        f'[keys.alice]\nkey = "{SECRET}"\nrequests_per_minute = 60\n'
        "max_running_samples = 4\nmax_queued_samples = 8\n"
        'tokens_per_minute = 1_000\npriority = true\ncache_salt = "team"\n'
        f'[keys."b.o-b_2"]\nkey = ["old", "new"]\nsha256 = "{"0" * 64}"\n'
    )
    alice, bob = read_keys(file)
    assert alice.digests == (bytes.fromhex(HASHED),)
    assert alice.tenant.name == "alice"
    assert alice.tenant.quotas == Quotas(60, 1000, 4, 8)
    assert alice.tenant.may_prioritise
    assert alice.tenant.cache_salt == "team"
    assert bob.tenant.name == "b.o-b_2"
    assert len(bob.digests) == 3
    assert bob.tenant.quotas == Quotas()
    assert not bob.tenant.may_prioritise
    assert bob.tenant.cache_salt is None


def test_a_hash_opens_as_its_key_does(file: pathlib.Path):
    file.write_text(f'[keys.a]\nkey = "{SECRET}"\n')
    (plain,) = read_keys(file)
    file.write_text(f'[keys.a]\nsha256 = "{HASHED}"\n')
    (hashed,) = read_keys(file)
    assert plain.digests == hashed.digests


BROKEN = {
    "": "keys: Field required",
    "[keys]": "at least 1 item",
    f"[keys.a]\nkey = {SECRET}": "line 2",
    f'key = "{SECRET}"': "key is not known; known are keys",
    f'[keys.a]\nkey = "{SECRET}"\nrpm = 5': "keys.a.rpm is not known; known are key,",
    "[keys.a]\npriority = true": "keys.a has neither key nor sha256",
    '[keys.a]\nkey = ""': "keys.a.key is empty",
    '[keys.a]\nkey = " "': "keys.a.key is empty",
    f'[keys.a]\nkey = "{SECRET} "': "keys.a.key begins or ends with white space",
    f'[keys.a]\nkey = "{SECRET}\\n{SECRET}"': "characters that cannot be printed",
    "[keys.a]\nkey = 5": "keys.a.key: Input should be a valid list",
    f'[keys.a]\nkey = ["{SECRET}", 5]': "keys.a.key.1: ",
    f'[keys.a]\nkey = {[SECRET] * 5}': "at most 4 items",
    f'[keys.a]\nsha256 = "{SECRET}"': "keys.a.sha256.0: ",
    f'[keys.a]\nsha256 = "{HASHED.upper()}"': "keys.a.sha256.0: ",
    f'[keys."a b"]\nkey = "{SECRET}"': "keys.a b",
    f'[keys."{"a" * 65}"]\nkey = "{SECRET}"': "should match",
    f'[keys.a]\nkey = "{SECRET}"\n[keys.a]': "line 3",
    f'[keys.a]\nkey = "{SECRET}"\nrequests_per_minute = 0': "greater than or equal",
    f'[keys.a]\nkey = "{SECRET}"\nrequests_per_minute = true': "a valid integer",
    f'[keys.a]\nkey = "{SECRET}"\ntokens_per_minute = 1.5': "a valid integer",
    f'[keys.a]\nkey = "{SECRET}"\ntokens_per_minute = "9"': "a valid integer",
    f'[keys.a]\nkey = "{SECRET}"\npriority = 1': "a valid boolean",
    f'[keys.a]\nkey = "{SECRET}"\ncache_salt = ""': "at least 1 character",
    f'keys = ["{SECRET}"]': "keys: ",
    "a = " + "[" * 9999: "nested too deeply",
    "#" * MAX_BYTES + "##": f"more than {MAX_BYTES} bytes",
    "".join(f"[keys.n{i}]\nkey='k{i}'\n" for i in range(MAX_KEYS + 1)): str(MAX_KEYS),
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_told_without_its_keys(file: pathlib.Path, text: str):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(file)
    assert str(caught.value).startswith(str(file))
    assert BROKEN[text] in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_is_no_file_is_not_waited_for(tmp_path: pathlib.Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, pathlib.Path("/dev/zero")):
        with pytest.raises(ConfigError, match="not a regular file"):
            read_keys(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="utf-8"):
        read_keys(tmp_path / "bytes")


def test_who_may_read_and_write_it_matters(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    file.write_text(f'[keys.a]\nkey = "{SECRET}"\n')
    read_keys(file)
    assert not caplog.records
    file.chmod(0o644)
    read_keys(file)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "everybody on this machine may read it" in record.getMessage()
    assert SECRET not in caplog.text
    file.chmod(0o602)
    with pytest.raises(ConfigError, match="everybody on this machine may write it"):
        read_keys(file)
    caplog.clear()
    file.write_text(f'[keys.a]\nsha256 = "{HASHED}"\n')
    file.chmod(0o644)
    read_keys(file)
    assert not caplog.records, "a hash may be read"
