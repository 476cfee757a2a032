"""How many modules a prompt passes on its way to an operation."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fdjax import LLM, SamplingParams
from fdjax.kernels.op import Op

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST = 13


def _modules() -> Iterator[str]:
    """Those of fdjax on the stack, innermost first."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals["__name__"]
        if name.startswith("fdjax."):
            yield name.removeprefix("fdjax.")
        frame = frame.f_back


@pytest.fixture(scope="module")
def walks() -> dict[str, set[tuple[str, ...]]]:
    """By operation, the modules on the stack wherever a prompt's trace calls it."""
    found: dict[str, set[tuple[str, ...]]] = {}
    call: Callable[[Op[Any, Any], Any], Any] = vars(Op)["__call__"]

    def told(self: Op[Any, Any], one: Any) -> Any:
        found.setdefault(self.name, set()).add(tuple(dict.fromkeys(_modules())))
        return call(self, one)

    # An engine of its own: what another has traced is not traced again.
    llm = LLM(max_model_len=32, max_num_seqs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Op, "__call__", told)
        llm.generate(["Once"], SamplingParams(max_tokens=3, temperature=0.0))
    return found


@pytest.mark.cpu
def test_no_operation_is_deeper_than_it_was(walks: dict[str, set[tuple[str, ...]]]):
    assert {"matmul", "decode_attention", "prefill_attention", "draw"} <= {*walks}
    deepest = max((way for ways in walks.values() for way in ways), key=len)
    assert len(deepest) <= MOST, " -> ".join(reversed(deepest))
    assert deepest[0] == "kernels.matmul" and deepest[-1] == "serve.llm"


@pytest.mark.cpu
def test_the_way_of_a_token_names_all_modules(walks: dict[str, set[tuple[str, ...]]]):
    _, _, behind = PAGE.read_text().partition("## The way of a token\n")
    diagram = behind.split("```")[1]
    passed = {name for ways in walks.values() for way in ways for name in way}
    missing = {
        name
        for name in passed
        if name not in diagram and not name.startswith("kernels.")
    }
    assert not missing
