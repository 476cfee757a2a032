"""The memory plan as a bar."""

from typing import Any

import pytest

from fdjax.cli.picture import WIDTH, picture
from fdjax.cli.report import Memory

SIZES: dict[str, Any] = {
    "budget_bytes": 1000,
    "weight_bytes": 500,
    "workspace_bytes": 1,
    "kv_bytes": 400,
    "unused_bytes": 99,
    "page_bytes": 10,
    "token_bytes": 1,
    "page_size": 10,
    "num_pages": 40,
    "num_tokens": 400,
    "step_pages": 10,
    "max_model_len": 100,
    "max_num_seqs": 4,
    "missing_bytes": 0,
    "would_fit": [],
}


def test_parts_stand_in_proportion():
    bar, legend = picture(Memory(**SIZES)).splitlines()
    assert len(bar) == WIDTH
    assert bar == "█" * 29 + "░" * 16 + "▒" * 5 + "▓" + "·" * 5
    assert legend.startswith("█ weights  ░ pages  ▒ pages, or the largest step")


@pytest.mark.parametrize("name", ["step_pages", "unused_bytes"])
def test_what_is_not_there_is_not_shown(name: str):
    sizes: dict[str, Any] = {**SIZES, name: 0}
    whole, less = picture(Memory(**SIZES)), picture(Memory(**sizes))
    symbol = {"step_pages": "▒", "unused_bytes": "·"}[name]
    assert symbol in whole
    assert symbol not in less
    assert len(less.splitlines()[0]) == WIDTH
