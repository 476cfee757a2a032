"""Some seconds of `python -m tests.soak --hostile`, over an engine without a model."""

import asyncio
import collections

from fdjax.serve.http.keyring import Keyring
from tests.support.attacks import ATTACKS
from tests.support.fake_engine import FakeEngine
from tests.support.hostile_soak import Rest, Turns, report, turns
from tests.support.http_server import LIMITS, TOKENS, listening, served
from tests.support.load import Load

HONEST, OTHERS = "sk-honest", "sk-others"


def test_some_seconds_of_it():
    engine = FakeEngine(TOKENS * 8, step_s=0.002)
    with (
        served(engine, keyring=Keyring([HONEST, OTHERS])) as server,
        listening(server.app) as port,
    ):
        done = asyncio.run(
            turns(
                f"http://127.0.0.1:{port}",
                honest=HONEST,
                others=OTHERS,
                seconds=2.0,
                turn_s=1.0,
                seed=1,
                largest=LIMITS.body_bytes,
                hold_s=0.2,
                max_tokens=24,
            )
        )
    assert not done.quiet.faults and not done.beside.faults
    assert done.quiet.gaps_s and done.beside.gaps_s
    assert not done.unhealthy and not done.failures
    assert {name for name, _ in done.outcomes} == {one.__name__ for one in ATTACKS}


def test_what_is_wrong_is_told():
    load = Load(seconds=[1.0], gaps_s=[0.01] * 100)
    outcomes = collections.Counter({("long_text", "400"): 3})
    rest = Rest(resident_bytes=2**30, open_files=100)
    well = Turns(quiet=load, beside=load, outcomes=outcomes, health_s=[0.01])
    words, good = report(well, rest, rest)
    assert good
    assert "1.00 times as long" in words and "long_text: 400 3" in words
    slow = Load(seconds=[1.0], gaps_s=[0.01] * 90 + [0.05] * 10)
    lost = Load(seconds=[1.0], gaps_s=[0.01] * 100, faults=["ReadError: "])
    for wrong in (slow, lost):
        assert not report(Turns(load, wrong, outcomes), rest, rest)[1]
    assert not report(Turns(load, load, outcomes, ["503"]), rest, rest)[1]
    failed = outcomes + collections.Counter({("spaces", "500"): 1})
    assert not report(Turns(load, load, failed), rest, rest)[1]
    for grown in (Rest(2**30, 103), Rest(2**30 + 2**25, 100)):
        assert not report(well, rest, grown)[1]
