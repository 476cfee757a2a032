"""The engine's scheduling on a device that only takes time."""

import itertools
import pathlib
from typing import Any

import pytest

from benchmarks import simulated
from benchmarks.simulated import Server
from benchmarks.simulated_device import Costs
from fdjax.cli.bench.arrivals import Arrival
from fdjax.engine.buckets import Buckets
from fdjax.engine.pipeline import Pipeline
from fdjax.engine.policy import StepPolicy

COSTS = Costs(step=4.0, row=0.0, token=0.02, pair=0.0, host=1.0)
SERVER = Server(costs=COSTS)


def test_one_request_takes_what_its_steps_take():
    (times,) = SERVER.answers([Arrival(0.5, 1024, 3)])
    first, *later = (1e3 * one for one in times)
    assert first == pytest.approx(1 + 4 + 0.02 * 1024)
    gaps = [b - a for a, b in itertools.pairwise([first, *later])]
    assert gaps == pytest.approx([4.0, 4.0])


def test_who_arrives_in_a_long_step_is_in_the_next(monkeypatch: pytest.MonkeyPatch):
    """One request decodes beside long prompts, and then a short one comes."""
    arrivals = [Arrival(0.0, 64, 400)]
    arrivals += [Arrival(0.3 + 0.1 * n, 4096, 2) for n in range(8)]
    arrivals.append(Arrival(1.03, 64, 2))
    late = SERVER.answers(arrivals)[-1][0]
    monkeypatch.setattr(Pipeline, "spare_s", 0.0)
    early = SERVER.answers(arrivals)[-1][0]
    assert 1e3 * early - 1e3 * late > 3.0


def test_every_token_comes_and_a_target_spreads_prompts():
    arrivals = [Arrival(0.01 * n, 3000, 30 + n % 7) for n in range(40)]
    gaps: list[float] = []
    for limit in (None, 40.0):
        server = Server(costs=COSTS, policy=StepPolicy(max_itl_ms=limit))
        times = server.answers(arrivals)
        counts = [len(one) for one in times]
        assert counts == [one.output_tokens for one in arrivals]
        assert all(one == sorted(one) for one in times)
        pairs = itertools.chain(*map(itertools.pairwise, times[10:]))
        gaps.append(max(b - a for a, b in pairs))
    assert gaps[1] < 0.05 < gaps[0]


def test_the_program_says_what_a_trace_would_be_served_like(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    lines = [f"2023-11-16 18:00:{n // 9:02},{100 + n},{5 + n % 9}" for n in range(300)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    simulated.main([str(trace), "--loads", "conv-20", "--seconds", "5", "--skip", "0"])
    assert "'load': 'conv-20', 'requests_per_s'" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [None, 100.0])
def test_prompts_go_on_where_the_first_one_was_long(limit: float | None):
    """All that is known then is that a large call takes long."""
    server = Server(policy=StepPolicy(max_itl_ms=limit))
    arrivals = [Arrival(0.0, 8000, 150)]
    arrivals += [Arrival(1.0 + 0.1 * n, 1000, 150) for n in range(60)]
    times = server.answers(arrivals)
    assert max(one[0] for one in times[1:]) < 0.1


def test_where_rows_are_full_calls_are_filled(monkeypatch: pytest.MonkeyPatch):
    """Requests that wait for a row let no time go into padding."""
    told: list[bool] = []
    call_tokens = Buckets.call_tokens

    def tell(buckets: Buckets, count: int, **options: Any) -> int:
        told.append(options["crowded"])
        return call_tokens(buckets, count, **options)

    monkeypatch.setattr(Buckets, "call_tokens", tell)
    server = Server(max_num_seqs=4, costs=COSTS)
    server.answers([Arrival(0.0, 600, 9)] * 6)
    assert told[0] and not told[-1]
