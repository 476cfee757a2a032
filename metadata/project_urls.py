"""The project's addresses in a package's metadata: whoever builds it says them.

scikit-build-core asks this provider of dynamic metadata (`pyproject.toml`). The sources
do not know where they are published, so nothing is said where nobody has said it.
"""

import os
from collections.abc import Mapping
from typing import Any

VARIABLE = "FDJAX_PROJECT_URLS"
EXAMPLE = "Homepage=https://example.org/fdjax, Issues=https://example.org/fdjax/issues"

# Of the specification of metadata, for `Project-URL`.
MAX_LABEL_LENGTH = 32


def dynamic_metadata(
    settings: Mapping[str, Any], project: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """The field `urls` of `[project]`; empty where the variable is not set.

    Args:
        settings: of this provider in `pyproject.toml`; it has none.
        project: the rest of `[project]`.

    Raises:
        ValueError: see `project_urls`.
    """
    return {"urls": project_urls(os.environ.get(VARIABLE, ""))}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """The fields that a wheel may have otherwise than its source distribution."""
    return {"urls": True}


def project_urls(text: str) -> dict[str, str]:
    """Addresses by their labels.

    Args:
        text: `LABEL=ADDRESS`, separated by commas.

    Raises:
        ValueError: a part is no such pair, its label is too long or there twice, or its
            address is not one of the web.
    """
    urls: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        label, _, url = (piece.strip() for piece in part.partition("="))
        _check(part, label, url)
        if label in urls:
            raise ValueError(f"{VARIABLE}: {label!r} is there twice; leave one out")
        urls[label] = url
    return urls


def _check(part: str, label: str, url: str) -> None:
    if not label or not url.startswith(("https://", "http://")) or url.split() != [url]:
        raise ValueError(
            f"{VARIABLE}: {part!r} is not LABEL=ADDRESS, with an address that begins "
            f"with https:// or http://; write it like {EXAMPLE!r}"
        )
    if len(label) > MAX_LABEL_LENGTH:
        raise ValueError(
            f"{VARIABLE}: the label {label!r} has {len(label)} characters; metadata "
            f"takes up to {MAX_LABEL_LENGTH}"
        )
