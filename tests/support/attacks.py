"""Hostile requests, and how a server takes them: nobody should send any of these."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable

import httpx2

from tests.support import model_attacks
from tests.support.attackers import CHATS, COMPLETIONS, Attackers

AMBIGUOUS = 'start: start start | start start start | "a"\n'


async def long_text(to: Attackers) -> str:
    size = to.draw.randrange(to.largest // 8, to.largest // 2 - 100)
    return await to.post(COMPLETIONS, {"prompt": "a " * size})


async def long_chat(to: Attackers) -> str:
    turn = {"role": "user", "content": "a " * 80}
    return await to.post(CHATS, {"messages": [turn] * to.draw.randrange(1000, 4096)})


async def spaces(to: Attackers) -> str:
    return await to.post("/tokenize", {"prompt": " " * (to.largest - 1000)})


async def left_crowd(to: Attackers) -> str:
    """Connections that ask for many samples, and are closed before these are made."""
    body = {"prompt": [[5] * 50] * 2, "n": 128, "max_tokens": 150, "stream": True}

    count = to.draw.randrange(2, 20)
    await asyncio.gather(*(to.leave(COMPLETIONS, body) for _ in range(count)))
    return "closed"


async def silence(to: Attackers) -> str:
    """Connections that say nothing, or half of a head."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(to.draw.randrange(10, 60)):
            _, writer = await to.connect()
            writers.append(writer)
            writer.write(to.draw.choice([b"", b"GET /health HTTP/1.1\r\nHost: "]))
        await asyncio.sleep(to.draw.uniform(0.0, to.hold_s))
    finally:
        for writer in writers:
            writer.close()
    return "closed"


async def slow_body(to: Attackers) -> str:
    _, writer = await to.connect()
    with contextlib.closing(writer):
        writer.write(to.head(COMPLETIONS, 1000))
        for _ in range(10):
            writer.write(b" ")
            await asyncio.sleep(to.hold_s / 10)
    return "closed"


async def tiny_chunks(to: Attackers) -> str:
    """A body of a byte a chunk."""
    count = to.draw.randrange(5_000, 50_000)
    return await to.send(to.head(COMPLETIONS, None), b"1\r\n \r\n" * count)


async def half_sent_bodies(to: Attackers) -> str:
    """Large ones, all but their ends."""

    async def one() -> None:
        _, writer = await to.connect()
        with contextlib.closing(writer):
            writer.write(to.head(COMPLETIONS, to.largest))
            writer.write(b" " * (to.largest - 1000))
            await asyncio.sleep(to.draw.uniform(0.0, to.hold_s))

    await asyncio.gather(*(one() for _ in range(to.draw.randrange(5, 20))))
    return "closed"


async def structure(to: Attackers) -> str:
    """JSON of very many small values, in one of the fields."""
    value = to.draw.choice((b"[],", b"{},", b"1,", b'{"":0},', b'"",', b"[[[[]]]],"))
    field = to.draw.choice((b"prompt", b"stop", b"messages", b"logit_bias", b"tools"))
    count = (to.largest - 1000) // len(value)
    body = b'{"' + field + b'": [' + value * count + b"0]}"
    path = to.draw.choice((COMPLETIONS, CHATS))
    return await to.send(to.head(path, len(body)), body)


async def many_entries(to: Attackers) -> str:
    """Well-formed ones, of which a request may have some thousands."""
    turn = {"role": "user", "content": "a"}
    fields = (
        {"messages": [turn] * (to.largest // 40)},
        {"messages": [turn], "metadata": {str(i): 1 for i in range(to.largest // 16)}},
    )
    return await to.post(CHATS, to.draw.choice(fields))


async def unread_field(to: Attackers) -> str:
    """A long body whose request waits for its row."""
    body = {"prompt": [5], "max_tokens": 50, "user": "u" * (to.largest - 1000)}
    return await to.post(COMPLETIONS, body)


async def first_of_all(to: Attackers) -> str:
    body = {"prompt": [5], "n": 4, "max_tokens": 50, "priority": -(2**31)}
    return await to.post(COMPLETIONS, body)


async def slow_schema(to: Attackers) -> str:
    schema = {"type": "integer", "multipleOf": to.draw.randrange(900_000, 999_999)}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"prompt": [5], "max_tokens": 8, "response_format": form}
    return await to.post(COMPLETIONS, body)


async def slow_masks(to: Attackers) -> str:
    form = {"type": "grammar", "grammar": AMBIGUOUS}
    body = {"prompt": [5], "max_tokens": 64, "response_format": form}
    return await to.post(COMPLETIONS, body)


async def vast_answer(to: Attackers) -> str:
    body = {"prompt": [5], "n": 128, "max_tokens": 200, "logprobs": 20}
    return await to.post(COMPLETIONS, body)


async def unread_stream(to: Attackers) -> str:
    """A large stream, of which nothing is read."""
    body = {"prompt": [5], "n": 16, "max_tokens": 200, "logprobs": 20, "stream": True}
    data = json.dumps(body).encode()
    reader, writer = await to.connect()
    with contextlib.closing(writer):
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]  (a socket's has it)
        writer.write(to.head(COMPLETIONS, len(data)) + data)
        await asyncio.sleep(to.draw.uniform(0.0, to.hold_s))
    del reader
    return "closed"


async def broken_body(to: Attackers) -> str:
    bodies = (
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": [1e400], "temperature": NaN}',
        to.draw.randbytes(1000),
    )
    body = to.draw.choice(bodies)
    return await to.send(to.head(COMPLETIONS, len(body)), body)


async def broken_head(to: Attackers) -> str:
    heads = (
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        to.draw.randbytes(200) + b"\r\n\r\n",
    )
    return await to.send(to.draw.choice(heads))


async def wrong_key(to: Attackers) -> str:
    return await Attackers(to.url, "sk-guess", to.draw).post(
        COMPLETIONS, {"prompt": "a", "max_tokens": 1}
    )


async def half_closed(to: Attackers) -> str:
    data = json.dumps({"prompt": [5], "max_tokens": 4}).encode()
    return await to.send(to.head(COMPLETIONS, len(data)), data, half_close=True)


type Attack = Callable[[Attackers], Awaitable[str]]

ATTACKS: tuple[Attack, ...] = (
    long_text,
    long_chat,
    spaces,
    left_crowd,
    silence,
    slow_body,
    tiny_chunks,
    half_sent_bodies,
    structure,
    many_entries,
    unread_field,
    first_of_all,
    slow_schema,
    slow_masks,
    vast_answer,
    unread_stream,
    broken_body,
    broken_head,
    wrong_key,
    half_closed,
    *model_attacks.ALL,
)


async def attack_once(attack: Attack, to: Attackers) -> None:
    """Makes one attack, and notes what became of it."""
    try:
        outcome = await attack(to)
    except (httpx2.HTTPError, OSError, TimeoutError) as error:
        outcome = type(error).__name__
    to.outcomes[attack.__name__, outcome] += 1


async def attack_at_random(to: Attackers, *, count: int, seconds: float) -> None:
    """So many attackers at once, for some seconds: any attack, then a pause."""
    until = time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < until:
            await attack_once(to.draw.choice(ATTACKS), to)
            await asyncio.sleep(to.draw.uniform(0.0, 0.5))

    await asyncio.gather(*(one() for _ in range(count)))
