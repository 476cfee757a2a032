"""How many modules a prompt passes on its way to an operation, and in which way.

They are those on the stack wherever an operation is called. A server's engine has a
thread of its own: there a walk is what stands on the stacks where `AsyncLLM` is asked,
where the thread is told, and where the thread calls the operation, one after another.

The longest walks, counted alike at 732ef51, at 61372ae and now:

* of `LLM`: 13, 17, 13;
* of `AsyncLLM`: 13, 18, 14;
* over HTTP: 18, 27, 23.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fdjax import LLM, AsyncLLM, SamplingParams
from fdjax.kernels.op import Op
from fdjax.serve.engine_thread import EngineThread
from fdjax.serve.http.app import create_app
from tests.support.http_server import MODEL

type Way = tuple[str, ...]
type Serve = Callable[[LLM], None]

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
URL = "http://test"
PARAMS = SamplingParams(max_tokens=3, temperature=0.0)
# Where a stack ends that another goes on from.
ASKED, TOLD = "AsyncLLM.start", "EngineThread.add"


def _modules() -> Iterator[str]:
    """Those of fdjax on the stack, innermost first."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals["__name__"]
        if name.startswith("fdjax."):
            yield name.removeprefix("fdjax.")
        frame = frame.f_back


def _offline(llm: LLM) -> None:
    llm.generate(["Once"], PARAMS)


def _in_asyncio(llm: LLM) -> None:
    async def ask() -> None:
        async for _ in served.generate("Once", PARAMS):
            pass

    with contextlib.closing(AsyncLLM.of(llm)) as served:
        asyncio.run(ask())


def _over_http(llm: LLM) -> None:
    async def ask() -> None:
        transport = httpx2.ASGITransport(create_app(served, MODEL))
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
            body = {"prompt": "Once", "max_tokens": 3, "temperature": 0.0}
            assert (await client.post("/v1/completions", json=body)).is_success

    with contextlib.closing(AsyncLLM.of(llm)) as served:
        asyncio.run(ask())


def walks_of(serve: Serve) -> dict[str, set[Way]]:
    """By operation, the modules before it, outermost first; a request is traced."""
    found: dict[str, set[Way]] = {}

    def watch(kind: type[Any], method: str, name: Callable[[Any], str]) -> None:
        call = vars(kind)[method]

        def told(self: Any, *given: Any, **named: Any) -> Any:
            way = tuple(dict.fromkeys(_modules()))[::-1]
            found.setdefault(name(self), set()).add(way)
            return call(self, *given, **named)

        patch.setattr(kind, method, told)

    # An engine of its own: what another has traced is not traced again.
    llm = LLM(max_model_len=32, max_num_seqs=1)
    with pytest.MonkeyPatch.context() as patch:
        watch(Op, "__call__", lambda op: op.name)
        watch(AsyncLLM, "start", lambda _: ASKED)
        watch(EngineThread, "add", lambda _: TOLD)
        serve(llm)
    before = [way for name in (ASKED, TOLD) for way in found.pop(name, ())]
    front = [name for way in before for name in way]
    return {
        name: {tuple(dict.fromkeys([*front, *way])) for way in ways}
        for name, ways in found.items()
    }


# How each is asked, how long its longest walk may be, and where that begins.
WAYS: dict[str, tuple[Serve, int, str]] = {
    "offline": (_offline, 13, "serve.llm"),
    "in asyncio": (_in_asyncio, 14, "serve.async_llm"),
    "over HTTP": (_over_http, 23, "serve.http.records"),
}


@pytest.fixture(scope="module")
def walks() -> dict[str, dict[str, set[Way]]]:
    """Of each of `WAYS`."""
    return {name: walks_of(serve) for name, (serve, _, _) in WAYS.items()}


@pytest.mark.cpu
@pytest.mark.parametrize("name", WAYS)
def test_no_operation_is_deeper_than_it_was(
    name: str, walks: dict[str, dict[str, set[Way]]]
):
    _, most, first = WAYS[name]
    found = walks[name]
    assert {"matmul", "decode_attention", "prefill_attention", "draw"} <= {*found}
    deepest = max((way for ways in found.values() for way in ways), key=len)
    assert len(deepest) <= most, " -> ".join(deepest)
    assert (deepest[0], deepest[-1]) == (first, "kernels.matmul")


@pytest.mark.cpu
@pytest.mark.parametrize("name", WAYS)
def test_the_way_of_a_token_names_all_modules(
    name: str, walks: dict[str, dict[str, set[Way]]]
):
    """Of `serve.http` and of kernels, it names the packages alone."""
    _, _, behind = PAGE.read_text().partition("## The way of a token\n")
    drawn = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", behind.split("```")[1]))
    passed = {one for ways in walks[name].values() for way in ways for one in way}
    packages = ("serve.http.", "kernels.")
    assert not {one for one in passed - drawn if not one.startswith(packages)}
