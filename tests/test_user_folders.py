"""A user without a home has no files of his own, and is told so where he needs some."""

import os
import pathlib
import pwd

import pytest

from fdjax.cli import loading
from fdjax.serve import compilation_cache
from fdjax.user_folders import NoHomeError, user_folder
from tests.support.kept_programs import keeping


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user: no variable, and no entry in `/etc/passwd`."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_in_the_home_or_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_folder("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache" / "fdjax"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    folder = user_folder("XDG_CACHE_HOME", ".cache")
    assert folder == pathlib.Path("/elsewhere/fdjax")


@pytest.mark.usefixtures("homeless")
def test_no_home():
    with pytest.raises(NoHomeError, match=f"user {os.geteuid()} has no home.*set HOME"):
        user_folder("XDG_CACHE_HOME", ".cache")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_a_server_keeps_no_programs_and_says_so(
    caplog: pytest.LogCaptureFixture,
):
    with keeping(None):
        loading.keep_programs()
        assert not compilation_cache.is_configured()
    assert "programs are not kept" in caplog.text
    assert "has no home" in caplog.text
