"""Grammars that take their compiler long, or whose masks do."""

import contextlib
import select
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.attacked import Attacked
from tests.support.quiet import quiet

PATH = "/v1/completions"
AMBIGUOUS = 'start: start start | start start start | "a"\n'
HOSTILE = 20


def schema(name: str, multiple: int) -> dict[str, Any]:
    """Asks for an object whose integer takes the longer, the larger its divisor is."""
    of_integers = {
        "type": "object",
        "properties": {name: {"type": "integer", "multipleOf": multiple}},
        "required": [name],
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": of_integers}}
    return {"prompt": "Once", "max_tokens": 8, "response_format": form}


def test_schemas_beside_slow_ones(attacked: Attacked):
    """They are served while most of the slow ones, which came before, still wait."""
    with (
        quiet(attacked.port) as beside,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(6) as pool,
    ):
        slow = [
            stack.enter_context(attacked.asking(PATH, schema(f"slow{i}", 999_983 - i)))
            for i in range(HOSTILE)
        ]
        beside.go_on()
        bodies = [schema(f"quick{i}", 1) for i in range(4)]
        bodies += [schema(f"longer{i}", 19_997 - i) for i in range(2)]
        answers = pool.map(attacked.post, [PATH] * 6, bodies)
        assert {answer.status_code for answer in answers} == {200}
        ended, _, _ = select.select(slow, [], [], 0)
        assert len(ended) < HOSTILE // 2, "so many slow ones went before"
        beside.go_on()


def test_a_grammar_that_reads_a_text_in_ever_more_ways(attacked: Attacked):
    # Any number of letters is a text of it, which must not end before it is slow.
    body = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "temperature": 0}
    body |= {"structured_outputs": {"grammar": AMBIGUOUS}}
    with quiet(attacked.port) as beside:
        answer = attacked.post(PATH, body)
        beside.go_on()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "grammar_too_slow"
