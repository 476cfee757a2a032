"""Whoever builds a package says where the project is published."""

import importlib.util
import pathlib
import tomllib
from types import ModuleType
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _entry() -> dict[str, Any]:
    (entry,) = (
        one["provider"]
        for one in PYPROJECT["tool"]["dynamic-metadata"]
        if isinstance(one["provider"], dict)
    )
    return entry


@pytest.fixture
def provider() -> ModuleType:
    """As the build back end finds it."""
    entry = _entry()
    path = ROOT / entry["path"] / f"{entry['module']}.py"
    spec = importlib.util.spec_from_file_location(entry["module"], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_builder_says_is_in_the_metadata(
    provider: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    said = "Homepage=https://a.org/x?y=1, Issues = https://a.org/issues,"
    monkeypatch.setenv(provider.VARIABLE, said)
    urls = {"Homepage": "https://a.org/x?y=1", "Issues": "https://a.org/issues"}
    assert provider.dynamic_metadata({}, {}) == {"urls": urls}
    assert provider.project_urls(provider.EXAMPLE).keys() == urls.keys()


def test_nothing_said_is_nothing_there(
    provider: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(provider.VARIABLE, raising=False)
    assert provider.dynamic_metadata({}, {}) == {"urls": {}}
    assert "urls" not in PYPROJECT["project"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("https://a.org", r"'https://a.org' is not LABEL=ADDRESS.*write it like"),
        ("=https://a.org", "is not LABEL=ADDRESS"),
        ("Homepage=a.org", "begins with https:// or http://"),
        ("Homepage=https://a.org Issues=https://b.org", "is not LABEL=ADDRESS"),
        ("A=https://a.org, A=https://b.org", "'A' is there twice"),
        (f"{'a' * 33}=https://a.org", "has 33 characters; metadata takes up to 32"),
    ],
)
def test_what_is_no_address_is_refused(provider: ModuleType, said: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        provider.project_urls(said)


def test_all_that_build_have_the_provider():
    """The image's sources, uv's cache of builds, and source distributions."""
    folder = _entry()["path"]
    image = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    assert f"!{folder}" in image
    assert {"env": "FDJAX_PROJECT_URLS"} in PYPROJECT["tool"]["uv"]["cache-keys"]
    assert folder not in PYPROJECT["tool"]["scikit-build"]["sdist"]["exclude"]
