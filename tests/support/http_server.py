"""Applications to send requests to: in this process, or on a port of the loopback."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import httpx2
from fastapi import FastAPI

from fdjax.models import SHIPPED, resolve
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.chat_template import ChatTemplate
from fdjax.serve.grammars import Grammars
from fdjax.serve.http.app import create_app
from fdjax.serve.http.crowd import ConnectionLimits
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.limits import Limits
from fdjax.serve.http.listening import bound
from fdjax.serve.http.run import DrainingServer
from fdjax.serve.http.server import ServedModel
from fdjax.serve.texts import TextLimit
from fdjax.serve.tokenizer import FastTokenizer
from fdjax.serve.turns.turns import Turns
from tests.support.fake_engine import MAX_MODEL_LEN, VOCAB_SIZE, FakeEngine
from tests.support.waiting import wait_until

FOLDER = resolve(SHIPPED)
TOKENIZER = FastTokenizer(FOLDER / "tokenizer.json")
TEXT = " upon a time there was a fox"
TOKENS = TOKENIZER.encode_plain(TEXT)
GRAMMARS = Grammars(TOKENIZER, vocab_size=VOCAB_SIZE, eos_token_ids=[0])
GRAMMARS.prepare()  # the servers of tests are up for no time when a request comes
PROMPT = {"prompt": "Once", "max_tokens": 32}
CHAT = {"messages": [{"role": "user", "content": "Once"}]}
LIMITS = Limits(body_bytes=2**20, body_seconds=60, prompts=8, n=4, samples=16)
CONNECTIONS = ConnectionLimits(head_seconds=60, idle_seconds=60)
MODEL = ServedModel(
    names=("tales", "tales-5m"),
    vocab_size=VOCAB_SIZE,
    max_model_len=MAX_MODEL_LEN,
    chat=ChatTemplate(FOLDER).render,
    turns=Turns(TOKENIZER, tool_call_parser="hermes"),
)


@dataclasses.dataclass
class Served:
    """An application over a fake engine, and a client of it in this process."""

    engine: FakeEngine
    llm: AsyncLLM
    app: FastAPI

    @property
    def client(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://test")

    async def post(self, path: str, body: Any) -> httpx2.Response:
        """Sends JSON, NaN included."""
        async with self.client as client:
            return await client.post(path, json=body)

    async def get(
        self, path: str, *, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        async with self.client as client:
            return await client.get(path, headers=headers)

    async def all_taken(self, count: int) -> None:
        """Until so many requests can be aborted; the engine has them a bit before."""
        sample = f'request_params_n_count{{model_name="tales"}} {float(count)}\n'
        async with asyncio.timeout(60):
            while sample not in (await self.get("/metrics")).text:
                await asyncio.sleep(0.001)


@contextlib.contextmanager
def served(
    engine: FakeEngine | None = None,
    *,
    api_keys: Sequence[str] = (),
    keyring: Keyring | None = None,
    allow_priority: bool = False,
    model: ServedModel = MODEL,
    tokenizer: FastTokenizer | None = TOKENIZER,
    limits: Limits = LIMITS,
    **options: Any,
) -> Generator[Served]:
    """An application, closed at the end; options are those of `create_app`."""
    engine = engine or FakeEngine(TOKENS)
    llm = AsyncLLM(
        engine,
        tokenizer,
        GRAMMARS if tokenizer else None,
        text_limit=TextLimit(MAX_MODEL_LEN, bytes_per_token=16),
    )
    try:
        keyring = keyring or Keyring(api_keys, may_prioritise=allow_priority)
        app = create_app(llm, model, keyring=keyring, limits=limits, **options)
        yield Served(engine, llm, app)
    finally:
        llm.close()


@contextlib.contextmanager
def listening(
    app: FastAPI, limits: ConnectionLimits = CONNECTIONS, *, drain_seconds: float = 0.0
) -> Generator[int]:
    """The application on a port, which it gives."""
    with running(app, limits, drain_seconds=drain_seconds) as (_, _, port):
        yield port


@contextlib.contextmanager
def running(
    app: FastAPI, limits: ConnectionLimits = CONNECTIONS, **options: Any
) -> Generator[tuple[DrainingServer, threading.Thread, int]]:
    """The same, with its server and the thread that this runs in."""
    with bound("127.0.0.1", 0) as sockets:
        server = DrainingServer(app, sockets, limits=limits, **options)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield server, thread, sockets[0].getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()
