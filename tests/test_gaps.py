"""`benchmarks.gaps`: how long no kernel ran, and the load around it, on a CPU."""

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator

import jax
import jax.numpy as jnp
import pytest

from benchmarks import gaps, timeline
from benchmarks.online_engines import Started
from benchmarks.timeline import Kernel, kernel_trace

# Two streams: from 0 to 2 us one kernel within another, then 1 us of nothing, one that
# outlasts its follower, 30 us of nothing, and the last one.
KERNELS = [
    Kernel(0.0, 2000.0, "a"),
    Kernel(500.0, 900.0, "b"),
    Kernel(3000.0, 9000.0, "c"),
    Kernel(4000.0, 5000.0, "d"),
    Kernel(39_000.0, 40_000.0, "e"),
]


def test_waits_are_where_no_stream_has_a_kernel():
    assert gaps.waits(KERNELS[::-1]) == [
        (1.0, 0.002, "a", "c"),
        (30.0, 0.009, "c", "e"),
    ]
    found = gaps.summary(KERNELS)
    assert found["waiting"] == round(31 / 40, 5)
    assert found["longest_us"] == 30.0
    assert found["waits_over"] == {"20 us": 1, "100 us": 0, "1000 us": 0}
    assert found["waiting_over"]["20 us"] == round(30 / 40, 5)


def test_what_begins_and_ends_a_trace_is_left_out():
    later = [Kernel(ns, ns + 10.0, "f") for ns in (0.9e8, 1.1e8, 5.9e8, 6.1e8)]
    found = gaps.settled([KERNELS[0], *later], 0.5)
    assert [kernel.start for kernel in found] == [1.1e8, 5.9e8]
    assert gaps.settled([], 0.5) == []


def test_a_trace_records_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch):
    """On a CPU that is nothing at all."""

    def events_of(folder: str) -> list[str]:
        (path,) = pathlib.Path(folder).glob("**/*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        return [e.name for plane in planes for line in plane.lines for e in line.events]

    monkeypatch.setattr(timeline, "kernels_of", events_of)
    with kernel_trace() as found:
        jnp.arange(1000).sum().block_until_ready()
    assert found == []


def test_a_trace_without_kernels_is_refused():
    with pytest.raises(SystemExit, match="no kernels of a GPU"):
        gaps.summary([])


async def answer(prompt: list[int], count: int) -> AsyncIterator[int]:
    """A token each hundredth of a second."""
    for _ in range(count):
        await asyncio.sleep(0.01)
        yield 1


@pytest.fixture
def asked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line, of an engine that needs no model."""
    about = {"kv_tokens": 64}
    told = iter([3, 5])  # before the seconds that are traced, and after them
    started = Started(answer, about, 100, lambda: next(told), close=lambda: None)
    monkeypatch.setattr(gaps, "start_fdjax", lambda _: started)
    monkeypatch.setattr(gaps.needs, "gpu", lambda: None)
    begin = gaps.SETTLING_S * 1e9
    kernels = [Kernel(k.start + begin, k.end + begin, k.name) for k in KERNELS]
    kernels += [Kernel(0.0, 50.0, "begin"), Kernel(begin + 1e9, begin + 2e9, "end")]
    monkeypatch.setattr(timeline, "kernels_of", lambda _: kernels)
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    lines = [f"2023-11-16 18:15:{i:02},20,40" for i in range(9)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return [str(trace), "--out", str(out), "--skip", "0"]


def test_some_of_a_load_is_traced(asked: list[str], capsys: pytest.CaptureFixture[str]):
    gaps.main([*asked, "--after", "0.1", "--seconds", "0.1", "--list", "1"])
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.split(" ms: ") == ["       30.0 us at      0.0", "c -> e"]
    (row,) = json.loads(pathlib.Path(asked[2]).read_text())
    assert (row["load"], row["kernels"], row["preemptions"]) == ("conv-512", 5, 2)


def test_a_load_that_ends_too_soon_is_refused(asked: list[str]):
    with pytest.raises(SystemExit, match=r"was over in 1\.5 s: trace less"):
        gaps.main([*asked, "--after", "1", "--seconds", "0.5"])
