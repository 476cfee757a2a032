"""Beam searches that a server refuses, by the field that its client has sent."""

import re
from typing import Any

import pytest

from tests.support.engines import tiny_engine
from tests.support.http_server import served

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"early_stopping": "always"},
            "early_stopping is 'always'; use true, false or \"never\"",
        ),
        ({"early_stopping": 1}, 'early_stopping is 1; use true, false or "never"'),
        ({"early_stopping": {}}, "early_stopping is {}; use true"),
        ({"best_of": 4}, "best_of is 4; use 1, .* with use_beam_search and beam_width"),
        ({"best_of": True}, "best_of is True; use 1"),
        ({"best_of": "1"}, "best_of is '1'; use 1"),
        (
            {"length_penalty": -5, "max_tokens": 20},
            "length_penalty is -5, but outputs may have 20 tokens",
        ),
    ],
)
async def test_a_bad_field_is_told_with_what_it_may_be(
    fields: dict[str, Any], told: str
):
    engine: Any = tiny_engine(max_num_seqs=4)
    search = {"prompt": [5], "use_beam_search": True, "beam_width": 3, "n": 1}
    with served(engine) as server:
        answer = await server.post("/v1/completions", search | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == next(iter(fields))
    assert re.match(told, error["message"])


@pytest.mark.parametrize("name", ["max_beam_width", "max_num_beams"])
async def test_wider_searches_than_the_engine_takes_are_refused(name: str):
    widest: Any = {name: 2}
    engine: Any = tiny_engine(max_num_seqs=4, **widest)
    search = {"prompt": [5], "use_beam_search": True, "beam_width": 3, "n": 1}
    with served(engine) as server:
        answer = await server.post("/v1/completions", search)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "beam_width"
    assert f"beam_width is 3, but {name} is 2" in error["message"]


@pytest.mark.parametrize(
    ("widest", "n", "told"),
    [
        (
            "max_num_beams",
            3,
            r"n is 3, but \w+ is 2 .* lower n, or raise max_num_beams",
        ),
        (
            "max_beam_width",
            3,
            r"n is 3, but \w+ is 2; lower n, or raise max_beam_width",
        ),
        ("max_num_beams", 513, "n is 513; use an integer from 1 to 512"),
    ],
)
async def test_an_n_that_is_the_width_is_named_where_it_is_too_large(
    widest: str, n: int, told: str
):
    limits: Any = {widest: 2}
    engine: Any = tiny_engine(max_num_seqs=4, **limits)
    search = {"use_beam_search": True, "n": n}
    chat = {"messages": [{"role": "user", "content": "Once"}]}
    with served(engine) as server:
        answers = [
            await server.post("/v1/completions", search | {"prompt": [5]}),
            await server.post("/v1/chat/completions", search | chat),
        ]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "n")
        assert re.match(told, error["message"])
